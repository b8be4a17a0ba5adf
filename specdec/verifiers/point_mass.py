"""Each drafted child as a proposal that was certain: accept with p, else strike the token out."""

from typing import ClassVar

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import descend

ACCEPTS = frozenset(Draw) - {Draw.COUPLED}


class PointMass(Verifier[PartOptions]):
    """Child x is accepted with the current p(x), else x is zeroed and p renormalised; what is left gives the next token.

    The order of children does not matter, and a repeated child has nothing left to be accepted with. Equal in distribution to
    `match`. *Source: arXiv 2401.15077, algorithm 1 with q = 1 at the drafted token.*
    """

    name: ClassVar[str] = "point_mass"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=False)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "PointMass":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            return self._try_children(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_children)

    def _try_children(
        self, tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng
    ) -> tuple[int | None, TokenDist]:
        left = target_probs.row(node)
        for child in drawn:
            if rng.flip(left.prob(tree.tokens[child])):
                return child, left
            left = left.without(tree.tokens[child]) or target_probs.fall_back(left)
        return None, left
