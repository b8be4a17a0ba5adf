"""Rejection sampling along a chain: the original rule of speculative decoding."""

from typing import ClassVar

from specdec.interfaces.declarations import Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import accept_single, check_single, descend

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class Chain(Verifier[PartOptions]):
    """Accept x with min(1, p(x) / q(x)); at the first rejection draw from norm((p - q)+), past the end from p.

    *Source: arXiv 2211.17192, algorithm 1; arXiv 2302.01318, algorithm 2.* Deviation: `u < p/q` with u in [0, 1), so that a
    token with p = 0 never passes.
    """

    name: ClassVar[str] = "chain"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN}), reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Chain":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_child(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            check_single(drawn, node, self.name)
            return accept_single(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_child)
