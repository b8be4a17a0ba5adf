"""Shapes of draft trees, without tokens, and their networkx graphs.

A shape names its nodes by paths of ranks: `(0,)` is the best child of the root, `(0, 1)` the second best child of that.
networkx is imported only by the two functions that speak its language, so that no decode loop loads it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from specdec.errors import SpecError

RankPath: TypeAlias = tuple[int, ...]
Graph: TypeAlias = Any
"""A networkx.DiGraph: a name for readers, since networkx carries no types."""

MAX_NODES = 4096
"""Largest shape that is accepted: a larger one is a slip of the pen."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without tokens. paths: drafted nodes, the most important first; parents and lower ranks come before.

    Raises SpecError naming the path that breaks a rule.
    """

    paths: tuple[RankPath, ...]

    def __post_init__(self) -> None:
        if len(self.paths) > MAX_NODES:
            raise SpecError(f"a tree of {len(self.paths)} nodes; at most {MAX_NODES} are accepted")
        seen: set[RankPath] = {()}
        for path in self.paths:
            check_path(path, seen)
            seen.add(path)

    @classmethod
    def of(cls, paths: Iterable[Sequence[int]]) -> "TreeShape":
        """The shape of these paths, moved up as little as it takes for parents and lower ranks to come first."""
        return cls(_parents_first([tuple(path) for path in paths]))

    @classmethod
    def chain(cls, length: int) -> "TreeShape":
        """A single path."""
        return cls.k_ary([1] * length)

    @classmethod
    def k_ary(cls, widths: Sequence[int]) -> "TreeShape":
        """Every node of level i has widths[i] children; level by level."""
        level: list[RankPath] = [()]
        paths: list[RankPath] = []
        for width in widths:
            if len(paths) + len(level) * width > MAX_NODES:
                raise SpecError(f"widths {list(widths)} make a tree of more than {MAX_NODES} nodes")
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    @property
    def num_nodes(self) -> int:
        """Drafted nodes, root excluded."""
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return max(map(len, self.paths), default=0)

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return not any(path[-1] for path in self.paths)

    @property
    def max_children(self) -> tuple[int, ...]:
        """The most children of a node, by its depth, from the root on."""
        most = [0] * self.depth
        for path in self.paths:
            most[len(path) - 1] = max(most[len(path) - 1], path[-1] + 1)
        return tuple(most)

    def level_sizes(self) -> tuple[int, ...]:
        """Nodes of each level below the root."""
        sizes = Counter(map(len, self.paths))
        return tuple(sizes[level] for level in range(1, self.depth + 1))

    def child_counts(self) -> dict[RankPath, int]:
        """Number of children of every node that has any, the root `()` included, in file order."""
        counts: dict[RankPath, int] = {}
        for path in self.paths:
            counts[path[:-1]] = path[-1] + 1
        return counts

    def cut(self, *, nodes: int, depth: int) -> "TreeShape":
        """The first `nodes` paths that are no longer than `depth`: decided by position alone, never by tokens."""
        if nodes >= len(self.paths) and depth >= self.depth:
            return self
        return TreeShape(tuple(path for path in self.paths if len(path) <= depth)[: max(nodes, 0)])


def check_path(path: RankPath, seen: set[RankPath]) -> None:
    """Raise SpecError unless `path` may follow the paths in `seen` (which holds the root `()` too)."""
    shown = list(path)
    if not path or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 for rank in path):
        raise SpecError(f"path {shown}: a path is a list of at least one rank, each 0 or more")
    if path in seen:
        raise SpecError(f"path {shown}: occurs twice")
    if path[:-1] not in seen:
        raise SpecError(f"path {shown}: its parent {shown[:-1]} is missing or comes after it")
    if path[-1] and (*path[:-1], path[-1] - 1) not in seen:
        raise SpecError(f"path {shown}: its sibling {[*shown[:-1], path[-1] - 1]} of lower rank is missing or comes after it")


def _parents_first(paths: list[RankPath]) -> tuple[RankPath, ...]:
    """A path takes the latest place among its own, its parent's and its lower sibling's."""
    place = {path: index for index, path in reversed(list(enumerate(paths)))}
    for path in sorted(place, key=lambda p: (len(p), p)):
        before = [path[:-1], (*path[:-1], path[-1] - 1)] if path else []
        place[path] = max([place[path], *(place[p] for p in before if p in place)])
    return tuple(sorted(paths, key=lambda p: (place[p], len(p), p)))


def to_graph(shape: TreeShape) -> Graph:
    """The shape as a graph: node 0 is the root, node i + 1 is paths[i]; nodes carry `path`, edges carry `rank`."""
    graph = import_module("networkx").DiGraph()
    graph.add_node(0, path=())
    number: dict[RankPath, int] = {(): 0}
    for node, path in enumerate(shape.paths, start=1):
        number[path] = node
        graph.add_node(node, path=path)
        graph.add_edge(number[path[:-1]], node, rank=path[-1])
    return graph


def from_graph(graph: Graph) -> TreeShape:
    """The shape of a rooted tree with edges away from the root, in its node order where that is possible.

    Ranks are the edges' `rank`, else the order of the edges. Raises SpecError for a graph that is no tree.
    """
    if not len(graph) or not import_module("networkx").is_arborescence(graph):
        raise SpecError("the graph is not a tree with one root and edges away from it")
    root = next(node for node, degree in graph.in_degree() if degree == 0)
    paths: dict[Any, RankPath] = {root: ()}
    stack = [root]
    while stack:
        node = stack.pop()
        for order, child in enumerate(graph.successors(node)):
            paths[child] = (*paths[node], graph.edges[node, child].get("rank", order))
            stack.append(child)
    return TreeShape.of(paths[node] for node in graph if node != root)
