"""Greedy multi-draft verification: several certain children, and one drawn from what is left of q."""

from typing import ClassVar

import torch

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, siblings

ACCEPTS = frozenset({Draw.TOP_THEN_ONE})


class GreedyLast(Verifier[PartOptions]):
    """One token y a node: the drawn child x with min(1, p(x) / q'(x)), else a draw from norm((p - q')+); a child is accepted.

    q' is q without the certain children, renormalised. y follows p as in rejection sampling of a single draft, so that certain
    children cost nothing; for drafts of this kind no rule accepts more at a node. *Source: arXiv 2502.18779.*
    """

    name: ClassVar[str] = "greedy_last"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "GreedyLast":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        path: list[int] = []
        node = 0
        while drawn := siblings(tree, node, ACCEPTS, self.name):
            token = self._token(tree, node, drawn, target_probs, rng)
            child = tree.child(node, token)
            if child is None:
                return Verdict(tuple(path), token, all_accepted=False)
            path.append(child)
            node = child
        token = target_probs.row(node).choose(rng, tree.root_position + tree.depths[node] + 1)
        return Verdict(tuple(path), token, all_accepted=True)

    def _token(self, tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng) -> int:
        """The token after `node`."""
        *certain, last = (tree.tokens[child] for child in drawn)
        q = tree.q_of(node).to(torch.float64)
        if certain:
            q = q.index_fill(0, torch.tensor(certain, device=q.device), 0.0)
            q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
        dist = target_probs.row(node)
        draft_prob = check_drafted(float(q[last]), drawn[-1], last)
        if rng.flip(min(1.0, dist.prob(last) / draft_prob)):
            return last
        left = dist.residual(q) or target_probs.fall_back(dist)
        return left.choose(rng, tree.root_position + tree.depths[node] + 1)
