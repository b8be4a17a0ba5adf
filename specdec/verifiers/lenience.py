"""Lossy: rejection sampling along a chain that is more willing to accept."""

from typing import Annotated, ClassVar

from pydantic import Field

from specdec.interfaces.declarations import Guarantee, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import accept_single, check_single, descend

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class LenienceOptions(PartOptions):
    """Options of `lenience`."""

    lenience: Annotated[float, Field(gt=0, le=1, description="what q is multiplied by; 1 is lossless, less accepts more")] = (
        0.75
    )


class Lenience(Verifier[LenienceOptions]):
    """Accept x with min(1, p(x) / (l q(x))); at the first rejection draw from norm((p - l q)+), past the end from p.

    A token follows min(p / l, q) + r norm((p - l q)+), where r is what the first part lacks of 1.
    *Source: arXiv 2211.17192, appendix A.5; arXiv 2310.08461.*
    """

    name: ClassVar[str] = "lenience"
    Options: ClassVar[type[PartOptions]] = LenienceOptions

    def __init__(self, lenience: float) -> None:
        self._lenience = lenience

    @classmethod
    def declares(cls, options: LenienceOptions) -> VerifierDeclaration:
        """Lossless where the lenience is 1."""
        guarantee = Guarantee.LOSSLESS if options.lenience == 1 else Guarantee.LOSSY
        return VerifierDeclaration(ACCEPTS, frozenset({Shape.CHAIN}), reads_q=True, guarantee=guarantee)

    @classmethod
    def build(cls, options: LenienceOptions, tools: BuildTools) -> "Lenience":
        return cls(options.lenience)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_child(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            check_single(drawn, node, self.name)
            return accept_single(tree, node, drawn, target_probs, rng, lenience=self._lenience)

        return descend(tree, rng, ACCEPTS, self.name, try_child)
