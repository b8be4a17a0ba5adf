"""All trees of a size: the plain version that the searches are compared with."""

from collections.abc import Iterator

from specdec.errors import SpecError
from specdec.tree_search.expected_tokens import Children, expected_tokens
from specdec.trees.tree_shape import RankPath, TreeShape

MAX_NODES = 10
"""Beyond this there are too many trees to look at."""


def all_trees(*, nodes: int, depth: int, width: int) -> Iterator[frozenset[RankPath]]:
    """Every tree of exactly `nodes` drafted nodes in which a child of rank r has all siblings of lower rank; each once."""
    if nodes > MAX_NODES:
        raise SpecError(f"brute force looks at every tree; {nodes} nodes are too many, {MAX_NODES} at most")
    level: set[frozenset[RankPath]] = {frozenset()}
    for _ in range(nodes):
        level = {tree | {path} for tree in level for path in _addable(tree, depth, width)}
    yield from level


def _addable(tree: frozenset[RankPath], depth: int, width: int) -> Iterator[RankPath]:
    for parent in ((), *tree):
        rank = next(r for r in range(width + 1) if (*parent, r) not in tree)
        if rank < width and len(parent) < depth:
            yield (*parent, rank)


def brute_force(children: Children, *, nodes: int, depth: int, width: int) -> TreeShape:
    """The best tree of at most `nodes` drafted nodes, by looking at all of them; the smallest of equals."""
    best, best_value = TreeShape(()), expected_tokens(TreeShape(()), children)
    for size in range(1, nodes + 1):
        for tree in all_trees(nodes=size, depth=depth, width=width):
            shape = TreeShape.of(sorted(tree))
            value = expected_tokens(shape, children)
            if value > best_value:
                best, best_value = shape, value
    return best
