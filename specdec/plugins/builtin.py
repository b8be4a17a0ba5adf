"""The parts that ship with specdec, offered through the same hooks as everybody else's.

They are imported when they are asked for, so that importing specdec stays cheap.
"""

from specdec.interfaces.parts import Drafter, Target, TreeBuilder, Verifier
from specdec.plugins.hookspecs import hookimpl


@hookimpl
def specdec_drafters() -> list[type[Drafter]]:
    """Plain decoding, lookups, a draft model, draft heads, a mixture of drafters, and a table for proofs."""
    from specdec.drafters.block import BlockDrafter
    from specdec.drafters.eagle import EagleDrafter
    from specdec.drafters.eagle3 import Eagle3Drafter
    from specdec.drafters.hydra import HydraDrafter
    from specdec.drafters.medusa import MedusaDrafter
    from specdec.drafters.mixture import MixtureDrafter
    from specdec.drafters.model import ModelDrafter
    from specdec.drafters.ngram import NgramDrafter
    from specdec.drafters.none import NoDrafter
    from specdec.drafters.recycling import RecyclingDrafter
    from specdec.drafters.suffix import SuffixDrafter
    from specdec.drafters.tabular import Tabular

    lookups: list[type[Drafter]] = [NgramDrafter, SuffixDrafter, RecyclingDrafter]
    heads: list[type[Drafter]] = [EagleDrafter, Eagle3Drafter, MedusaDrafter, HydraDrafter, BlockDrafter]
    return [NoDrafter, *lookups, ModelDrafter, *heads, MixtureDrafter, Tabular]


@hookimpl
def specdec_tree_builders() -> list[type[TreeBuilder]]:
    """Chains, trees from files, EAGLE-2's dynamic trees, sampled and coupled ones, and trees that weigh their costs."""
    from specdec.tree_builders.adaptive import Adaptive
    from specdec.tree_builders.chain import Chain
    from specdec.tree_builders.chains import Chains
    from specdec.tree_builders.coupled import Coupled
    from specdec.tree_builders.delayed import Delayed
    from specdec.tree_builders.dynamic import Dynamic
    from specdec.tree_builders.fixed import Fixed
    from specdec.tree_builders.pair import Pair
    from specdec.tree_builders.sampled import Sampled
    from specdec.tree_builders.top_then_one import TopThenOne

    drawn: list[type[TreeBuilder]] = [Sampled, Delayed, Chains, TopThenOne, Pair]
    return [Chain, Fixed, Dynamic, Adaptive, *drawn, Coupled]


@hookimpl
def specdec_verifiers() -> list[type[Verifier]]:
    """The lossless rules, and the lossy ones."""
    from specdec.verifiers.bild import Bild
    from specdec.verifiers.block import Block
    from specdec.verifiers.chain import Chain
    from specdec.verifiers.ensemble import Ensemble
    from specdec.verifiers.gbv import Gbv
    from specdec.verifiers.greedy_last import GreedyLast
    from specdec.verifiers.judge import Judge
    from specdec.verifiers.k_seq import KSeq
    from specdec.verifiers.lenience import Lenience
    from specdec.verifiers.match import Match
    from specdec.verifiers.multi_round import MultiRound
    from specdec.verifiers.optimal_transport import OptimalTransport
    from specdec.verifiers.point_mass import PointMass
    from specdec.verifiers.spec_hub import SpecHub
    from specdec.verifiers.thresholds import Thresholds
    from specdec.verifiers.traversal import Traversal
    from specdec.verifiers.typical import Typical

    exact: list[type[Verifier]] = [Match, PointMass, Chain, Block, MultiRound, KSeq, OptimalTransport, Traversal, Gbv]
    return [*exact, GreedyLast, SpecHub, Typical, Thresholds, Lenience, Ensemble, Bild, Judge]


@hookimpl
def specdec_targets() -> list[type[Target]]:
    """The embedded model, any Hugging Face causal LM, and a table for proofs."""
    from specdec.targets.builtin import BuiltinTarget
    from specdec.targets.huggingface import HuggingFaceTarget
    from specdec.targets.tabular import Tabular

    return [BuiltinTarget, HuggingFaceTarget, Tabular]
