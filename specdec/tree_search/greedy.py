"""Best-first growth: always the likeliest node that may be added next."""

from heapq import heappop, heappush

from specdec.tree_search.expected_tokens import Children, Number
from specdec.trees.tree_shape import RankPath, TreeShape


def best_first(children: Children, *, nodes: int, depth: int) -> TreeShape:
    """The tree of at most `nodes` drafted nodes that grows by the likeliest next sibling or first child, best nodes first.

    Optimal where rates fall from rank to rank (those of a path fall downwards anyway); else `dynamic_programming` is.
    `children` may depend on the whole path: draft probabilities of one context make the tree that is best there.
    *Source: arXiv 2401.10774 (Medusa); with draft probabilities 2406.17276 (OPT-Tree).*
    """
    frontier: list[tuple[Number, int, RankPath, Number]] = []
    taken: list[RankPath] = []

    def offer(parent: RankPath, rank: int, parent_reach: Number) -> None:
        rates = children(parent) if len(parent) < depth else ()
        if rank < len(rates) and rates[rank] > 0:
            reach = parent_reach * rates[rank]
            heappush(frontier, (-reach, len(parent), (*parent, rank), parent_reach))

    offer((), 0, 1)
    while frontier and len(taken) < nodes:
        minus_reach, _, path, parent_reach = heappop(frontier)
        taken.append(path)
        offer(path, 0, -minus_reach)
        offer(path[:-1], path[-1] + 1, parent_reach)
    return TreeShape(tuple(taken))
