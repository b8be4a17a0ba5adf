"""Where the nodes of a draft tree are drawn: depth goes to the right, every leaf has a line of its own."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """columns[n]: depth of node n. lines[n]: its height in lines, between those of its first and last child."""

    columns: tuple[int, ...]
    lines: tuple[float, ...]

    @property
    def num_columns(self) -> int:
        """Depths, the root's included."""
        return 1 + max(self.columns)

    @property
    def num_lines(self) -> int:
        """Leaves."""
        return 1 + int(max(self.lines))


def layout(parents: Sequence[int]) -> Layout:
    """Parents come before their children; the root's is -1. Linear time, no recursion."""
    size = len(parents)
    children: list[list[int]] = [[] for _ in range(size)]
    columns = [0] * size
    for node in range(1, size):
        children[parents[node]].append(node)
        columns[node] = columns[parents[node]] + 1
    lines = [0.0] * size
    free = 0
    stack = [0]
    order = []
    while stack:
        node = stack.pop()
        order.append(node)
        stack += reversed(children[node])
        if not children[node]:
            lines[node] = float(free)
            free += 1
    for node in reversed(order):
        if children[node]:
            lines[node] = (lines[children[node][0]] + lines[children[node][-1]]) / 2
    return Layout(tuple(columns), tuple(lines))
