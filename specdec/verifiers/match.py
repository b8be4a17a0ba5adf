"""Draw a token from p and follow it through the tree: lossless on any draft whatever."""

from typing import ClassVar

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import siblings

ACCEPTS = frozenset(Draw)


class Match(Verifier[PartOptions]):
    """One draw per visited node; descend when a child has that token.

    The very draw that is compared is the one that is emitted, and it is keyed by position: a seeded run emits the tokens of
    plain decoding with that seed, for every draft.
    *Source: arXiv 2408.07978 (exact match under shared noise); optimal for deterministic trees.*
    """

    name: ClassVar[str] = "match"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=False)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Match":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        path: list[int] = []
        node = 0
        while True:
            token = target_probs.row(node).choose(rng, tree.root_position + tree.depths[node] + 1)
            child = tree.child(node, token)
            if child is None:
                return Verdict(tuple(path), token, all_accepted=not siblings(tree, node, ACCEPTS, self.name))
            path.append(child)
            node = child
