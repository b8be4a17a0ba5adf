"""Trees as the builders `delayed` and `chains` grow them: searched by their options, since not every shape is theirs."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from specdec.trees.tree_shape import TreeShape


class Family(StrEnum):
    """any: every shape. delayed: a chain, then the same number of children at all nodes of a level. chains: several chains."""

    ANY = "any"
    DELAYED = "delayed"
    CHAINS = "chains"


def family_shapes(family: Family, *, nodes: int, depth: int, width: int) -> Iterator[TreeShape]:
    """Every shape of `delayed` or `chains` with at most so many drafted nodes, levels, and children of a node.

    Of `chains` the shape in which no two begin alike; where they do, fewer nodes are drafted.
    """
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
