"""Lossy: a child is also accepted because p gives it enough, or the children so far almost enough."""

from typing import Annotated, ClassVar

from pydantic import Field

from specdec.interfaces.declarations import ALL_SHAPES, Guarantee, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import descend

ACCEPTS = frozenset(Draw) - {Draw.COUPLED}


class ThresholdsOptions(PartOptions):
    """Options of `thresholds`. Both at 1: lossless."""

    single: Annotated[float, Field(gt=0, le=1, description="a child is accepted if p of it is at least this")] = 0.5
    accumulated: Annotated[float, Field(gt=0, le=1, description="what p of the children so far is divided by")] = 1.0


class Thresholds(Verifier[ThresholdsOptions]):
    """One uniform number u a node: the first child with p >= t1, or u < (p of it and of those before it) / t2, is accepted.

    After the last child the next token is drawn from p without the children. Where both thresholds are 1, this is `match` in
    distribution. *Source: SGLang's tree_speculative_sampling_target_only, `threshold_single` and `threshold_acc`.* Deviation:
    u < instead of u <=, so that a child with p = 0 is not accepted.
    """

    name: ClassVar[str] = "thresholds"
    Options: ClassVar[type[PartOptions]] = ThresholdsOptions

    def __init__(self, single: float, accumulated: float) -> None:
        self._single = single
        self._accumulated = accumulated

    @classmethod
    def declares(cls, options: ThresholdsOptions) -> VerifierDeclaration:
        """Lossless where both thresholds are 1."""
        exact = options.single == options.accumulated == 1
        guarantee = Guarantee.LOSSLESS if exact else Guarantee.LOSSY
        return VerifierDeclaration(ACCEPTS, ALL_SHAPES, reads_q=False, guarantee=guarantee)

    @classmethod
    def build(cls, options: ThresholdsOptions, tools: BuildTools) -> "Thresholds":
        return cls(options.single, options.accumulated)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            return self._try_children(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_children)

    def _try_children(
        self, tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng
    ) -> tuple[int | None, TokenDist]:
        """Instead of u, whether it is below a child's threshold is drawn, given that it is not below the one before."""
        dist = left = target_probs.row(node)
        reached = passed = 0.0
        for child in dict.fromkeys(drawn):
            prob = dist.prob(tree.tokens[child])
            reached += prob
            threshold = min(1.0, reached / self._accumulated)
            if prob >= self._single or (threshold > passed and rng.flip((threshold - passed) / (1 - passed))):
                return child, dist
            passed = threshold
            left = left.without(tree.tokens[child]) or target_probs.fall_back(left)
        return None, left
