"""Lossy: the large model keeps what it does not find too unlikely, and rolls back from the first token that it does."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from specdec.interfaces.declarations import Beside, Guarantee, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_single, descend

ACCEPTS = frozenset({Draw.DETERMINISTIC})


class BildOptions(PartOptions):
    """Options of `bild`."""

    rollback: Annotated[
        float, Field(gt=0, description="cross-entropy, in nats, above which a token is rolled back; 2 to 5")
    ] = 5.0


class Bild(Verifier[BildOptions]):
    """x stays if -log p(x) <= rollback, p by the logits before any warping, or if it is their likeliest token.

    From the first token that does not stay, the target decodes by itself: the next token is drawn from p after warping, which
    at temperature 0 is its likeliest. The other half of the method, to stop drafting where the small model is unsure, is
    `fallback` of the tree `chain`. What the answer follows has no closed form, and no exact price is stated.
    *Source: arXiv 2302.07863, section 3.*
    """

    name: ClassVar[str] = "bild"
    Options: ClassVar[type[PartOptions]] = BildOptions

    def __init__(self, rollback: float) -> None:
        self._rollback = rollback

    @classmethod
    def declares(cls, options: BildOptions) -> VerifierDeclaration:
        """Lossy, on deterministic chains; an unlikely token may have p = 0 after truncation."""
        return VerifierDeclaration(
            ACCEPTS,
            frozenset({Shape.CHAIN}),
            reads_q=False,
            guarantee=Guarantee.LOSSY,
            accepts_impossible=True,
            reads_beside=frozenset({Beside.UNWARPED_LOGITS}),
        )

    @classmethod
    def build(cls, options: BildOptions, tools: BuildTools) -> "Bild":
        return cls(options.rollback)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_child(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            check_single(drawn, node, self.name)
            dist = target_probs.row(node)
            stays = bool(drawn) and self._stays(target_probs.unwarped(node), tree.tokens[drawn[0]])
            return drawn[0] if stays else None, dist

        return descend(tree, rng, ACCEPTS, self.name, try_child)

    def _stays(self, logits: torch.Tensor, token: int) -> bool:
        """logits: [vocab]."""
        found = logits.float()
        loss = float(found.logsumexp(-1) - found[token])
        return loss <= self._rollback or int(found.argmax()) == token
