"""K-SEQ: i.i.d. drafts tried in order against p and q as they are, with a factor that leaves room for all of them."""

from typing import ClassVar

import torch
from scipy.optimize import brentq
from torch import Tensor

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, descend

ACCEPTS = frozenset({Draw.IID})


class KSeq(Verifier[PartOptions]):
    """Accept each of k i.i.d. drafts x with min(1, p(x) / (rho q(x))); after all of them, draw from what is left of p.

    One draft is accepted with b = sum min(q, p / rho), as token x with min(q, p / rho)(x), so that all of them emit that times
    c = 1 + (1 - b) + ... + (1 - b)^(k - 1). Any rho >= c leaves p - c min(q, p / rho) >= 0; the least, where rho = c, accepts
    most: at least 1 - 1/e of the optimum. Deviation: rho is solved to rounding and taken from the upper side.
    *Source: arXiv 2310.15141, algorithm 2.*
    """

    name: ClassVar[str] = "k_seq"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "KSeq":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            dist = target_probs.row(node)
            if not drawn:
                return None, dist
            q = tree.q_of(node).to(torch.float64)
            on_support = q[dist.ids.to(q.device)].to(dist.probs.device)
            rho = room_for(dist.probs, on_support, len(drawn))
            for child in drawn:
                token = tree.tokens[child]
                draft_prob = check_drafted(float(q[token]), child, token)
                if rng.flip(min(1.0, dist.prob(token) / (rho * draft_prob))):
                    return child, dist
            accepted = torch.minimum(on_support, dist.probs / rho)
            left = dist.reweighted((dist.probs - accepted * _tries(float(accepted.sum()), len(drawn))).clamp_min(0))
            return None, left or target_probs.fall_back(dist)

        return descend(tree, rng, ACCEPTS, self.name, try_children)


def room_for(p: Tensor, q: Tensor, count: int) -> float:
    """The least rho in [1, count] that leaves room for `count` drafts. p, q: [k] on p's support."""

    def excess(rho: float) -> float:
        return _tries(float(torch.minimum(q, p / rho).sum()), count) - rho

    if count == 1 or excess(1.0) <= 0:
        return 1.0
    rho = float(brentq(excess, 1.0, float(count), xtol=1e-14, rtol=1e-14))
    while excess(rho) > 0:
        rho = min(float(count), rho * (1 + 1e-14))
        if rho == count:
            break
    return rho


def _tries(accepted: float, count: int) -> float:
    """How many of `count` drafts are looked at on average, if each is accepted with `accepted`."""
    return sum((1 - accepted) ** earlier for earlier in range(count))
