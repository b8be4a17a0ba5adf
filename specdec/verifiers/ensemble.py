"""Lossy: rejection sampling along a chain against a mixture of p and q."""

from typing import Annotated, ClassVar

from pydantic import Field

from specdec.interfaces.declarations import Guarantee, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist, from_dense
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, check_single, descend

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class EnsembleOptions(PartOptions):
    """Options of `ensemble`."""

    weight: Annotated[float, Field(gt=0, le=1, description="of p in the mixture; 1 is lossless, less accepts more")] = 0.5


class Ensemble(Verifier[EnsembleOptions]):
    """Accept x with min(1, m(x) / q(x)), where m = w p + (1 - w) q; at the first rejection draw from norm((m - q)+).

    Past the end the next token is drawn from p. The others follow m: their total variation from p is (1 - w) times that of q.
    That holds at temperature 0 too, where q is as soft as the draft sampling makes it: meant for temperatures above 0.
    *Source: arXiv 2604.07622, static ensemble; `assistant_ensemble_weight` of transformers.*
    """

    name: ClassVar[str] = "ensemble"
    Options: ClassVar[type[PartOptions]] = EnsembleOptions

    def __init__(self, weight: float) -> None:
        self._weight = weight

    @classmethod
    def declares(cls, options: EnsembleOptions) -> VerifierDeclaration:
        """Lossless where p has the whole weight."""
        guarantee = Guarantee.LOSSLESS if options.weight == 1 else Guarantee.LOSSY
        return VerifierDeclaration(
            ACCEPTS, frozenset({Shape.CHAIN}), reads_q=True, guarantee=guarantee, accepts_impossible=options.weight < 1
        )

    @classmethod
    def build(cls, options: EnsembleOptions, tools: BuildTools) -> "Ensemble":
        return cls(options.weight)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            return self._try_child(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_children)

    def _try_child(
        self, tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng
    ) -> tuple[int | None, TokenDist]:
        dist = target_probs.row(node)
        if not drawn:
            return None, dist
        check_single(drawn, node, self.name)
        child, token, q = drawn[0], tree.tokens[drawn[0]], tree.q_of(node)
        draft_prob = check_drafted(float(q[token]), child, token)
        mixture = from_dense(self._weight * dist.dense(len(q)).to(q.device) + (1 - self._weight) * q)
        if rng.flip(min(1.0, mixture.prob(token) / draft_prob)):
            return child, dist
        return None, mixture.residual(q) or target_probs.fall_back(dist)
