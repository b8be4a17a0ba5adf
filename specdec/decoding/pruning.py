"""Drafts cut to the size that pays for the whole batch: rows share one forward, which is as wide as the largest tree."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from specdec.performance.step_cost import best_size
from specdec.trees.draft_tree import DraftTree, TreeSketch, Worth


def trimmed(trees: Sequence[DraftTree]) -> list[DraftTree]:
    """The trees, each without the nodes beyond the number at which the batch expects most tokens a second.

    Only where all builders told what their trees are worth; a tree without drafts has nothing to tell.
    """
    worths = [tree.worth for tree in trees if tree.worth is not None]
    if len(worths) < sum(tree.num_drafted > 0 for tree in trees) or not worths:
        return list(trees)
    size = size_for_all(
        [worth.gains[1:] for worth in worths],
        rows=len(trees),
        seconds_for=worths[0].seconds_for,
        spent_seconds=max(worth.spent_seconds for worth in worths),
    )
    return [tree if tree.worth is None else cut(tree, tree.worth, size) for tree in trees]


def size_for_all(
    gains: Sequence[Sequence[float]], *, rows: int, seconds_for: Callable[[int], float], spent_seconds: float
) -> int:
    """How many drafted nodes a row should have at most: the number with the most expected tokens a second.

    gains: by row, the chances of its drafted nodes, in any order. Of equal numbers the smaller.
    """
    ordered = [sorted(own, reverse=True) for own in gains]
    together = (sum(of_rank) for of_rank in zip_longest(*ordered, fillvalue=0.0))
    size, _ = best_size(together, lambda nodes: seconds_for(rows * (nodes + 1)) + spent_seconds, plain_tokens=float(rows))
    return size


def cut(tree: DraftTree, worth: Worth, size: int) -> DraftTree:
    """The tree of the `size` drafted nodes with the highest chances; of equal ones, the earlier."""
    if tree.num_drafted <= size:
        return tree
    ranked = sorted(range(1, len(tree)), key=lambda node: (-worth.gains[node], node))
    kept = [0, *sorted(ranked[:size])]
    sketch = TreeSketch(tree.tokens[0], tree.root_position)
    number = {0: 0}
    for node in kept[1:]:
        number[node] = sketch.add(number[tree.parents[node]], tree.tokens[node])
    smaller = sketch.freeze(next(iter(tree.draw_kind.values())))
    source = tuple(tree.source[node] for node in kept) if tree.source else ()
    return replace(smaller, source=source, worth=replace(worth, gains=tuple(worth.gains[node] for node in kept)))
