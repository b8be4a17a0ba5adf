"""`delayed`: a chain first, branches later."""

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
from specdec.tree_builders.shape_options import Widths
from specdec.trees.draft_tree import DraftTree, TreeSketch
from specdec.trees.tree_shape import TreeShape


class DelayedOptions(PartOptions):
    """Options of `delayed`."""

    stem: Annotated[int, Field(ge=1, le=64, description="draft tokens of the chain before the first branching")] = 2
    widths: Annotated[Widths, Field(description="children of every node below the stem, level by level")] = (3, 1)
    replacement: Annotated[bool, Field(description="draw siblings i.i.d., so that they may repeat")] = False

    @property
    def shape(self) -> TreeShape:
        """The stem, and the branches below its end."""
        return TreeShape.k_ary([*(1,) * self.stem, *self.widths])


class Delayed(TreeBuilder[DelayedOptions]):
    """`stem` single draws, then `widths` children a node, all drawn from q.

    Where the first tokens of a draft are likely to be accepted, and a rule judges whole paths, nodes are better spent deep than
    at the root. *Source: arXiv 2602.16994 (delayed expansion).*
    """

    name: ClassVar[str] = "delayed"
    Options: ClassVar[type[PartOptions]] = DelayedOptions

    def __init__(self, options: DelayedOptions) -> None:
        self._shape = options.shape
        self._replacement = options.replacement

    @classmethod
    def declares(cls, options: DelayedOptions) -> BuilderDeclaration:
        """I.i.d. or without-replacement draws, in a tree, or in a chain if nothing branches."""
        return shape_declaration(
            options.shape, sampling_kind(replacement=options.replacement), needs=frozenset({Gives.DISTRIBUTIONS})
        )

    @classmethod
    def build(cls, options: DelayedOptions, tools: BuildTools) -> "Delayed":
        """Nothing to resolve."""
        return cls(options)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children in the shape, vocab], as received."""
        draw = partial(rng.draw, replacement=self._replacement)
        sketch = TreeSketch(root_token, root_position)
        return (yield from grow_drawn(self._shape, sketch, budget, sampling_kind(replacement=self._replacement), draw))
