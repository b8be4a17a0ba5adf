"""What a shape is worth under given acceptance rates, and what it takes to draft it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from specdec.trees.tree_shape import RankPath, TreeShape

Number: TypeAlias = Any
"""A float, or a Fraction where answers are to be exact."""

Children: TypeAlias = Callable[[RankPath], Sequence[Number]]
"""By the path of a node, the acceptance rates of its children by rank, given that the node is reached."""

ROOT_ONLY = TreeShape(())
"""Plain decoding: nothing drafted."""


def reach(path: RankPath, children: Children) -> Number:
    """The chance that a node is reached: the product of the rates along its path; 0 for ranks without a rate."""
    chance: Number = 1
    for depth, rank in enumerate(path):
        rates = children(path[:depth])
        chance = chance * rates[rank] if rank < len(rates) else 0
    return chance


def expected_tokens(shape: TreeShape, children: Children) -> Number:
    """Expected tokens of a step: 1 (the target's own) and the chance of reaching each node."""
    return 1 + sum(reach(path, children) for path in shape.paths)


def expansions(shape: TreeShape) -> tuple[int, ...]:
    """Nodes that have children, level by level from the root: what a drafter is asked for."""
    by_level = Counter(map(len, shape.child_counts()))
    return tuple(by_level[level] for level in range(shape.depth))
