"""`pair`: two children a node, one drawn from q and, unless it is that, q's likeliest token, in a binary shape."""

from collections.abc import Generator
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import shape_declaration
from specdec.tree_builders.drawn import grow_drawn
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import TreeShape


class PairOptions(PartOptions):
    """Options of `pair`."""

    depth: Annotated[int, Field(ge=1, le=11, description="levels of pairs, each with twice the nodes of the one above")] = 3


class Pair(TreeBuilder[PairOptions]):
    """A binary tree: a first child is drawn from q, the second is q's likeliest token a or, where that came first, drawn too.

    That second draw is from q without a. Of equally likely tokens the lowest id is a. Where q has one token only, that is the
    only child, and nothing is below a child that was not drafted. A shape that the budget cuts may leave a node with a single
    child, which is one draw from q.
    *Source: arXiv 2411.05289.*
    """

    name: ClassVar[str] = "pair"
    Options: ClassVar[type[PartOptions]] = PairOptions

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape

    @classmethod
    def declares(cls, options: PairOptions) -> BuilderDeclaration:
        """Pairs in a tree."""
        return shape_declaration(TreeShape.k_ary([2] * options.depth), Draw.PAIR, needs=frozenset({Gives.DISTRIBUTIONS}))

    @classmethod
    def build(cls, options: PairOptions, tools: BuildTools) -> "Pair":
        """Nothing to resolve."""
        return cls(TreeShape.k_ary([2] * options.depth))

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children, vocab], as received."""
        sketch = TreeSketch(root_token, root_position)
        return (yield from grow_drawn(self._shape, sketch, budget, Draw.PAIR, partial(draw_pair, rng)))


def draw_pair(rng: DraftRng, q: Tensor, count: int) -> list[int]:
    """One draw from q [vocab] and, for a count of 2, the second of the pair, in that order."""
    first, likeliest = rng.draw(q, 1, replacement=True)[0], int(q.argmax())
    if count == 1:
        return [first]
    if first != likeliest:
        return [first, likeliest]
    rest = q.index_fill(0, q.argmax()[None], 0.0)
    return [first, *(rng.draw(rest, 1, replacement=True) if bool(rest.any()) else [])]
