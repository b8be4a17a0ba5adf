"""Optimal trees for rates by depth and rank, of every size up to a limit at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.tree_search.expected_tokens import Number
from specdec.trees.tree_shape import RankPath, TreeShape


@dataclass(frozen=True, slots=True)
class Optima:
    """The optimal trees of all sizes for one bound on depth.

    tokens[n]: expected tokens of a step with at most n nodes, the root included. split[d][r][m]: of m nodes for children of
    rank r and beyond below a node at depth d, how many go to the subtree of child r; 0: there are no such children.
    """

    tokens: tuple[Number, ...]
    split: tuple[tuple[tuple[int, ...], ...], ...]
    rows: tuple[Sequence[Number], ...]

    def shape(self, size: int) -> TreeShape:
        """The tree of at most `size` nodes, the root included; the likeliest nodes first."""
        reached: dict[RankPath, Number] = {}
        open_nodes: list[tuple[RankPath, Number, int]] = [((), 1, size)]
        while open_nodes:
            path, chance, nodes = open_nodes.pop()
            left, rank = nodes - 1, 0
            while len(path) < len(self.split) and rank < len(self.rows[len(path)]):
                taken = self.split[len(path)][rank][left]
                if not taken:
                    break
                child: RankPath = (*path, rank)
                reached[child] = chance * self.rows[len(path)][rank]
                open_nodes.append((child, reached[child], taken))
                left, rank = left - taken, rank + 1
        ordered = sorted(reached, key=lambda path: (-reached[path], len(path), path))
        return TreeShape.of(ordered)


def optimal_trees(by_depth: Sequence[Sequence[Number]], *, nodes: int, depth: int) -> Optima:
    """The best trees of up to `nodes` drafted nodes and `depth` levels; rates need not fall from rank to rank.

    by_depth: rates of the children of a node by its depth; deeper nodes take the last row. Of equal trees, the smaller.

    With S(d, n) the best expected tokens of a subtree of n nodes rooted at depth d, and F(d, r, m) the best of m nodes for its
    children of rank r and beyond: S(d, n) = 1 + F(d, 0, n - 1), and F(d, r, m) is the largest over k of
    a(d, r) S(d + 1, k) + F(d, r + 1, m - k).
    Takes nodes^2 x depth x ranks steps. *Source: arXiv 2402.12374, section 3.1 (rates that do not depend on depth).*
    """
    depth = min(depth, nodes)
    rows = tuple(by_depth[min(level, len(by_depth) - 1)] for level in range(depth))
    below: list[Number] = [0, *[1] * (nodes + 1)]
    splits: list[tuple[tuple[int, ...], ...]] = []
    for level in range(depth - 1, -1, -1):
        below, split = _level(rows[level], below, nodes - level)
        splits.append(split)
    return Optima(tuple(below), tuple(reversed(splits)), rows)


def _level(rates: Sequence[Number], below: list[Number], most: int) -> tuple[list[Number], tuple[tuple[int, ...], ...]]:
    """S of one level, [0..most + 1] by nodes, and how it splits its nodes. below: S of the level underneath."""
    after: list[Number] = [0] * (most + 1)
    split: list[tuple[int, ...]] = []
    for rate in reversed(rates):
        here, taken = _best_splits(rate, below, after)
        split.append(taken)
        after = here
    return [0, *[1 + value for value in after]], tuple(reversed(split))


def _best_splits(rate: Number, below: list[Number], after: list[Number]) -> tuple[list[Number], tuple[int, ...]]:
    """F of one rank from F of the next, and the size of the child's subtree; a child without gain is left out."""
    values: list[Number] = [0]
    taken = [0]
    for nodes in range(1, len(after)):
        best, size = values[-1], 0
        for own in range(1, nodes + 1):
            value = rate * below[min(own, len(below) - 1)] + after[nodes - own]
            if value > best:
                best, size = value, own
        values.append(best)
        taken.append(size or taken[-1])
    return values, tuple(taken)
