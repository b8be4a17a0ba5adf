"""Recursive rejection sampling: several drawn children per node, tried in the order in which they were drawn."""

from typing import ClassVar

import torch

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, descend

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class MultiRound(Verifier[PartOptions]):
    """Accept x with min(1, p(x) / q(x)); after a rejection p becomes norm((p - q)+) and the next child is tried.

    Children that were drawn i.i.d. all meet the whole q, repeats included; for those drawn without replacement the rejected
    token is struck from q, which is renormalised. The kind is read at every parent.
    *Source: arXiv 2305.09781 (i.i.d.); arXiv 2402.14160 and arXiv 2401.15077, algorithm 1 (without replacement).*
    """

    name: ClassVar[str] = "multi_round"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "MultiRound":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            return self._try_children(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_children)

    def _try_children(
        self, tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng
    ) -> tuple[int | None, TokenDist]:
        left = target_probs.row(node)
        if not drawn:
            return None, left
        q = tree.q_of(node).to(torch.float64)
        for child in drawn:
            token = tree.tokens[child]
            draft_prob = check_drafted(float(q[token]), child, token)
            if rng.flip(min(1.0, left.prob(token) / draft_prob)):
                return child, left
            left = left.residual(q) or target_probs.fall_back(left)
            if tree.draw_kind[node] is Draw.WITHOUT_REPLACEMENT:
                q = q.index_fill(0, torch.tensor(token, device=q.device), 0.0)
                q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
        return None, left
