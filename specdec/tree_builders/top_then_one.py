"""`top_then_one`: the likeliest tokens as certain children, and one child drawn from the rest, in a given shape."""

from collections.abc import Generator
from functools import partial
from typing import ClassVar

from torch import Tensor

from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import shape_declaration
from specdec.tree_builders.drawn import grow_drawn
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import TreeShape


class TopThenOneOptions(ShapeOptions):
    """Options of `top_then_one`: one of file, paths and widths."""


class TopThenOne(TreeBuilder[TopThenOneOptions]):
    """A tree of given shape: of k children the first k - 1 are q's likeliest tokens, the last is drawn from q without them.

    Of equally likely tokens the lowest ids come first; tokens with q = 0 are never drafted, so that a node has fewer children
    where q has fewer tokens. A single child is one draw from q. *Source: arXiv 2502.18779 (greedy multi-draft).*
    """

    name: ClassVar[str] = "top_then_one"
    Options: ClassVar[type[PartOptions]] = TopThenOneOptions

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape

    @classmethod
    def declares(cls, options: TopThenOneOptions) -> BuilderDeclaration:
        """Such draws in a tree, or in a chain if the shape is one."""
        return shape_declaration(options.known_shape, Draw.TOP_THEN_ONE, needs=frozenset({Gives.DISTRIBUTIONS}))

    @classmethod
    def build(cls, options: TopThenOneOptions, tools: BuildTools) -> "TopThenOne":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree))

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children in the shape, vocab], as received."""
        sketch = TreeSketch(root_token, root_position)
        return (yield from grow_drawn(self._shape, sketch, budget, Draw.TOP_THEN_ONE, partial(draw_top_then_one, rng)))


def draw_top_then_one(rng: DraftRng, q: Tensor, count: int) -> list[int]:
    """The count - 1 likeliest tokens of q [vocab], then one draw from what is left of it."""
    values, ids = q.sort(descending=True, stable=True)
    top = ids[: count - 1][values[: count - 1] > 0]
    rest = q.index_fill(0, top, 0.0)
    last = rng.draw(rest, 1, replacement=True) if bool(rest.any()) else []
    return [*top.tolist(), *last]
