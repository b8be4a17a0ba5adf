"""Upper bounds on what a rule may accept, where they have a closed form over a whole vocabulary."""

import torch
from torch import Tensor

from specdec.trees.draft_tree import SINGLE_DRAWS, DraftTree, Draw


def transport_bound(p: Tensor, q: Tensor, kind: Draw, count: int) -> float | None:
    """The most with which a lossless rule can emit one of the children of a node, over the draws of these children.

    The cheapest cut `min over H of p(H) + 1 - Pr(all drafts within H)`, H going through the sets of tokens with the smallest
    p/q. For i.i.d. draws that is the optimum of the transport, elsewhere a bound on it. None where Pr has no closed form here:
    deterministic and coupled draws, and more than two without replacement.

    Args:
        p: [vocab] float64, what the target says.
        q: [vocab] float64, what was drawn from.
        kind: How.
        count: How many children were drawn, repeats included.

    *Source: max-flow min-cut; arXiv 2410.18234; prefixes of p/q: arXiv 2502.18779.*
    """
    if kind in SINGLE_DRAWS and count == 1:
        return float(torch.minimum(p, q).sum())
    order = torch.where(q > 0, p / q, torch.inf).argsort(stable=True)
    within = torch.cat([torch.zeros(1, dtype=p.dtype, device=p.device), p[order].cumsum(0)])
    drafted = _all_within(q, order, kind, count)
    return None if drafted is None else float((within + 1 - drafted).min().clamp(0, 1))


def _all_within(q: Tensor, order: Tensor, kind: Draw, count: int) -> Tensor | None:
    """[vocab + 1] the probability that every draft is among the first h tokens of `order`, by h; None: not known."""
    ordered = q[order]
    mass = torch.cat([torch.zeros(1, dtype=q.dtype, device=q.device), ordered.cumsum(0)])
    if kind is Draw.IID:
        return mass**count
    if count != 2 or kind not in (Draw.WITHOUT_REPLACEMENT, Draw.PAIR, Draw.TOP_THEN_ONE):
        return None
    likeliest = int(q.argmax())
    has_top = torch.arange(len(mass), device=q.device) > int((order == likeliest).nonzero()[0])
    rest = 1 - q[likeliest]
    after_top = torch.where(has_top, (mass - q[likeliest]) / rest, 0.0) if rest > 0 else has_top.to(q.dtype)
    if kind is Draw.TOP_THEN_ONE:
        return after_top
    if kind is Draw.PAIR:
        return torch.where(has_top, mass - q[likeliest], 0.0) + q[likeliest] * after_top
    shares = torch.where(ordered < 1, ordered / (1 - ordered), 0.0)
    weights = torch.cat([torch.zeros(1, dtype=q.dtype, device=q.device), shares.cumsum(0)])
    squares = torch.cat([torch.zeros(1, dtype=q.dtype, device=q.device), (shares * ordered).cumsum(0)])
    return mass * weights - squares


def chain_bound(tree: DraftTree, rows: list[Tensor]) -> float:
    """What no rule can exceed on average over drawn chains: the sum over depths of min(1, the product of p/q down to it).

    Args:
        tree: A chain of single draws.
        rows: By node, p [vocab].

    *Source: arXiv 2403.10444, the ideal of both distributions known in full.*
    """
    product, total, node = 1.0, 0.0, 0
    while tree.children[node]:
        child = tree.children[node][0]
        token = tree.tokens[child]
        product *= float(rows[node][token]) / float(tree.q_of(node)[token])
        total += min(1.0, product)
        node = child
    return total
