"""Trees of a given shape: level by level, the same way whatever picks the children."""

from collections.abc import Callable, Generator, Iterable, Sequence

from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.trees.tree_shape import RankPath, TreeShape

Pick = Callable[[Answer, list[int], int], Iterable[Sequence[int]]]
"""(answer, children wanted of each frontier node, their position) to the tokens of each node's children, by rank."""


def shape_declaration(shape: TreeShape | None, draw: Draw, *, needs: frozenset[Gives]) -> BuilderDeclaration:
    """Such draws in a tree, or in a chain if the shape is one; a file that is still a bare name (None) counts as a tree."""
    return BuilderDeclaration(
        draw=draw,
        shape=Shape.CHAIN if shape is not None and shape.is_chain else Shape.TREE,
        needs=needs,
        max_nodes=shape.num_nodes if shape is not None else None,
        max_depth=shape.depth if shape is not None else None,
        max_children=shape.max_children if shape is not None else None,
    )


def grow_shape(shape: TreeShape, sketch: TreeSketch, budget: Budget, pick: Pick) -> Generator[Frontier, Answer, None]:
    """Grow the sketch of a root: one frontier a level, the nodes that have children in the shape.

    A shape too large is cut from its end; nothing grows below a stop id.
    """
    counts = shape.cut(nodes=budget.nodes, depth=budget.depth).child_counts()
    frontier: dict[RankPath, int] = {(): 0} if counts else {}
    while frontier:
        answer = yield Frontier(sketch, tuple(frontier.values()))
        position = sketch.root_position + sketch.depths[next(iter(frontier.values()))] + 1
        rows = pick(answer, [counts[path] for path in frontier], position)
        deeper: dict[RankPath, int] = {}
        for (path, node), tokens in zip(frontier.items(), rows, strict=True):
            for rank, token in enumerate(tokens):
                child = sketch.add(node, token)
                if (*path, rank) in counts and token not in budget.stop_ids:
                    deeper[*path, rank] = child
        frontier = deeper
