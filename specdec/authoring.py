"""All that a drafter, tree builder, verifier or target of one's own imports, in one place.

`specdec.testing` has the checks for their tests.
"""

from specdec.errors import CheckpointError, NumericsError, PluginError, SpecdecError, SpecError, TargetMismatch
from specdec.files.paths import DataFile
from specdec.interfaces.declarations import (
    Beside,
    BuilderDeclaration,
    DrafterDeclaration,
    Features,
    Gives,
    Guarantee,
    Reads,
    Shape,
    TargetDeclaration,
    VerifierDeclaration,
)
from specdec.interfaces.parts import (
    BuildTools,
    Drafter,
    DraftSession,
    PartOptions,
    Prefilled,
    Target,
    TargetState,
    TreeBuilder,
    Verifier,
    build_part,
)
from specdec.interfaces.proposals import (
    Answer,
    Budget,
    Candidates,
    Distributions,
    DraftProbs,
    DraftStart,
    Frontier,
    Memory,
    Proposal,
)
from specdec.interfaces.results import Committed, HiddenStates, Scored, StepRecord, TargetFacts, Verdict
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec
from specdec.plugins.hookspecs import hookimpl
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import DraftRng, TargetRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch, root_only
from specdec.trees.tree_shape import TreeShape

__all__ = [
    "PLAIN_CHAT",
    "Answer",
    "Beside",
    "Budget",
    "BuildTools",
    "BuilderDeclaration",
    "Candidates",
    "ChatFormat",
    "CheckpointError",
    "Committed",
    "DataFile",
    "Distributions",
    "DraftProbs",
    "DraftRng",
    "DraftSession",
    "DraftStart",
    "DraftTree",
    "Drafter",
    "DrafterDeclaration",
    "Draw",
    "Features",
    "Frontier",
    "Gives",
    "Guarantee",
    "HiddenStates",
    "Memory",
    "NumericsError",
    "PartOptions",
    "PluginError",
    "Prefilled",
    "Proposal",
    "Reads",
    "Scored",
    "Shape",
    "SpecError",
    "SpecdecError",
    "StepRecord",
    "Target",
    "TargetDeclaration",
    "TargetFacts",
    "TargetMismatch",
    "TargetProbs",
    "TargetRng",
    "TargetState",
    "TextCodec",
    "TokenDist",
    "TreeBuilder",
    "TreeShape",
    "TreeSketch",
    "Verdict",
    "Verifier",
    "VerifierDeclaration",
    "build_part",
    "hookimpl",
    "root_only",
]
