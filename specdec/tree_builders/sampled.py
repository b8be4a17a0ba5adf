"""`sampled`: children drawn from the drafter's q, in a given shape."""

from collections.abc import Generator
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import shape_declaration
from specdec.tree_builders.drawn import grow_drawn, sampling_kind
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.draft_tree import DraftTree, TreeSketch
from specdec.trees.tree_shape import TreeShape


class SampledOptions(ShapeOptions):
    """Options of `sampled`: one of file, paths and widths, and how to draw."""

    replacement: Annotated[bool, Field(description="draw siblings i.i.d., so that they may repeat")] = False


class Sampled(TreeBuilder[SampledOptions]):
    """A tree of given shape whose children are drawn from q, with or without replacement.

    *Source: arXiv 2305.09781 (i.i.d.), 2402.14160 and 2402.12374 (without replacement).*
    """

    name: ClassVar[str] = "sampled"
    Options: ClassVar[type[PartOptions]] = SampledOptions

    def __init__(self, shape: TreeShape, *, replacement: bool) -> None:
        self._shape = shape
        self._replacement = replacement

    @classmethod
    def declares(cls, options: SampledOptions) -> BuilderDeclaration:
        """I.i.d. or without-replacement draws, in a tree, or in a chain if the shape is one."""
        return shape_declaration(
            options.known_shape, sampling_kind(replacement=options.replacement), needs=frozenset({Gives.DISTRIBUTIONS})
        )

    @classmethod
    def build(cls, options: SampledOptions, tools: BuildTools) -> "Sampled":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree), replacement=options.replacement)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children in the shape, vocab], as received."""
        draw = partial(rng.draw, replacement=self._replacement)
        sketch = TreeSketch(root_token, root_position)
        return (yield from grow_drawn(self._shape, sketch, budget, sampling_kind(replacement=self._replacement), draw))
