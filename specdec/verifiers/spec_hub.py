"""SpecHub: an optimal-transport plan for pairs of drafts, sparse around q's likeliest token."""

from typing import ClassVar

import torch

from specdec.errors import PluginError
from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist, left_of
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import accept_single, check_drafted, descend

ACCEPTS = frozenset({Draw.PAIR})


class SpecHub(Verifier[PartOptions]):
    """Pairs hold q's likeliest token a, the hub, and another token x, with Q(x, a) = q(x) and Q(a, x) = q(a) q(x) / (1 - q(a)).

    x takes what it can of p(x) from the pairs (x, a), then from the pairs (a, x); a takes what it can of p(a) from what x left
    of the pairs (a, x), then of the pairs (x, a); what is left of p gives the next token. Deviation from the published code: a
    is never accepted outright because p(a) is close to 1, which is not exact. *Source: arXiv 2411.05289.*
    """

    name: ClassVar[str] = "spec_hub"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "SpecHub":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            if len(drawn) == 2:
                return _try_pair(tree, node, (drawn[0], drawn[1]), target_probs, rng)
            return accept_single(tree, node, drawn, target_probs, rng)

        return descend(tree, rng, ACCEPTS, self.name, try_children)


def _try_pair(
    tree: DraftTree, node: int, pair: tuple[int, int], target_probs: TargetProbs, rng: TargetRng
) -> tuple[int | None, TokenDist]:
    q, dist = tree.q_of(node).to(torch.float64), target_probs.row(node)
    hub = int(q.argmax())
    hub_first = tree.tokens[pair[0]] == hub
    other, hub_node = (pair[1], pair[0]) if hub_first else pair
    token = tree.tokens[other]
    if tree.tokens[hub_node] != hub or token == hub:
        raise PluginError(f"node {node}: a pair of draws holds q's likeliest token, {hub}; this one does not")
    p = dist.dense(len(q)).to(q.device)
    first = q.index_fill(0, torch.tensor(hub, device=q.device), 0.0)
    second = first * (q[hub] / first.sum())
    after_first = (p - first).clamp_min(0)
    after_second = (after_first - second).clamp_min(0)
    hub_wants = float(p[hub])
    left_second = float((second - after_first).clamp_min(0).sum())
    left_first = float((first - p).clamp_min(0).sum())
    wants, offered = (after_first, second) if hub_first else (p, first)
    if rng.flip(min(1.0, float(wants[token]) / check_drafted(float(offered[token]), other, token))):
        return other, dist
    hub_later = max(0.0, hub_wants - left_second)
    chance = _share(hub_wants, left_second) if hub_first else _share(hub_later, left_first)
    if rng.flip(chance):
        return hub_node, dist
    after_second[hub] = max(0.0, hub_later - left_first)
    return None, left_of(after_second) or target_probs.fall_back(dist)


def _share(wanted: float, offered: float) -> float:
    """What is taken of an offer; of nothing, everything."""
    return min(1.0, wanted / offered) if offered > 0 else 1.0
