"""Trees as the builders that draw grow them: searched by their options, since not every shape is theirs."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from specdec.tree_search.expected_tokens import Number
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_shape import RankPath, TreeShape


class Family(StrEnum):
    """any: every shape. delayed: a chain, then the same number of children at all nodes of a level. chains: several chains.

    pair: two children of every node above the last level. top_then_one: as many children of a node as the measured trees had
    at its depth, or none: the rate of the one that is drawn belongs to its number of certain siblings.
    """

    ANY = "any"
    DELAYED = "delayed"
    CHAINS = "chains"
    PAIR = "pair"
    TOP_THEN_ONE = "top_then_one"


DRAWS: dict[Family, frozenset[Draw]] = {
    Family.DELAYED: frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT}),
    Family.CHAINS: frozenset({Draw.IID}),
    Family.PAIR: frozenset({Draw.PAIR}),
    Family.TOP_THEN_ONE: frozenset({Draw.TOP_THEN_ONE}),
}
"""The kinds of draw whose rates tell how a family's drafts are accepted."""


def family_shapes(family: Family, *, nodes: int, depth: int, by_depth: Sequence[Sequence[Number]]) -> Iterator[TreeShape]:
    """Every shape of the family with at most so many drafted nodes, levels, and children of a node.

    Of `top_then_one` the best of each size. Of `chains` the shape in which no two begin alike; where they do, fewer nodes are
    drafted. by_depth: rates of the children of a node by its depth; deeper nodes take the last row.
    """
    width = max(map(len, by_depth))
    if family is Family.TOP_THEN_ONE:
        yield from _expanded(by_depth, nodes, depth)
        return
    if family is Family.PAIR:
        yield from (TreeShape.k_ary([2] * levels) for levels in range(1, depth + 1) if 2 ** (levels + 1) - 2 <= nodes)
        return
    if family is Family.CHAINS:
        for count in range(1, min(width, nodes) + 1):
            for length in range(1, min(depth, nodes // count) + 1):
                yield TreeShape.of([(rank, *(0,) * level) for level in range(length) for rank in range(count)])
        return
    for stem in range(1, min(depth, nodes) + 1):
        for widths in _branches(nodes - stem, depth - stem, width, 1):
            yield TreeShape.k_ary((*(1,) * stem, *widths))


def tree_options(family: Family, shape: TreeShape) -> dict[str, Any]:
    """The `tree` of a spec that grows a shape of the family; empty for plain decoding, and for any shape."""
    if not shape.num_nodes or family is Family.ANY:
        return {}
    widths = shape.max_children
    if family is Family.PAIR:
        return {"use": "pair", "depth": shape.depth}
    if family is Family.TOP_THEN_ONE:
        return {"use": "top_then_one", "paths": [list(path) for path in shape.paths]}
    if family is Family.CHAINS:
        return {"use": "chains", "count": widths[0], "length": shape.depth}
    stem = next((level for level, count in enumerate(widths) if count > 1), len(widths) - 1)
    if not stem:
        return {"use": "chain", "length": 1, "draw": "sampled"}
    return {"use": "delayed", "stem": stem, "widths": list(widths[stem:])}


def _branches(nodes: int, depth: int, width: int, parents: int) -> Iterator[tuple[int, ...]]:
    """Widths of the levels below a stem; none, and from the first on at least two children where there are any."""
    yield ()
    if depth < 1:
        return
    for count in range(2 if parents == 1 else 1, min(width, nodes // parents) + 1):
        for below in _branches(nodes - parents * count, depth - 1, width, parents * count):
            yield (count, *below)


def _expanded(by_depth: Sequence[Sequence[Number]], nodes: int, depth: int) -> Iterator[TreeShape]:
    """The best shapes in which a node has all children of its depth or none, of every number of nodes with children.

    Those nodes are a tree themselves, and which they are is found as the best tree of any shape is.
    """
    rows = [tuple(by_depth[min(level, len(by_depth) - 1)]) for level in range(depth)]
    seen: set[TreeShape] = set()
    for levels in range(1, depth + 1):
        best = _Parents(tuple(rows[:levels]))
        for count in range(1, nodes // min(map(len, rows)) + 1):
            _, parents = best.below(0, count)
            paths = [(*parent, rank) for parent in parents for rank in range(len(rows[len(parent)]))]
            shape = TreeShape.of(sorted(paths, key=lambda path: (len(path), path)))
            if shape.num_nodes <= nodes and shape not in seen:
                seen.add(shape)
                yield shape


class _Parents:
    """rows: rates of the children of a node by its depth. Which nodes should have children, if so many may."""

    def __init__(self, rows: tuple[tuple[Number, ...], ...]) -> None:
        self._rows = rows
        self._known: dict[tuple[int, int], tuple[Number, tuple[RankPath, ...]]] = {}

    def below(self, level: int, count: int) -> tuple[Number, tuple[RankPath, ...]]:
        """For a node at `level` that has children, and `count` with it in its subtree at most.

        The expected number of drafts that are accepted below it, and the ways from it to these nodes, the empty one first.
        """
        if (level, count) not in self._known:
            self._known[level, count] = self._computed(level, count)
        return self._known[level, count]

    def _computed(self, level: int, count: int) -> tuple[Number, tuple[RankPath, ...]]:
        best: dict[int, tuple[Number, tuple[RankPath, ...]]] = {0: (sum(self._rows[level]), ((),))}
        for rank, rate in enumerate(self._rows[level] if level + 1 < len(self._rows) else ()):
            after = dict(best)
            for used, (value, paths) in best.items():
                for own in range(1, count - used):
                    gain, ways = self.below(level + 1, own)
                    taken = (value + rate * gain, (*paths, *((rank, *way) for way in ways)))
                    if used + own not in after or taken[0] > after[used + own][0]:
                        after[used + own] = taken
            best = after
        return max(best.values(), key=lambda found: found[0])
