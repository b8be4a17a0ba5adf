"""`fixed`: the drafter's best children in the shape of a tree file."""

from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import grow_shape, shape_declaration
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import TreeShape


class FixedOptions(ShapeOptions):
    """Options of `fixed`: exactly one of them."""


class Fixed(TreeBuilder[FixedOptions]):
    """A tree of given shape: the child of rank r is the drafter's r-th best token.

    *Source: arXiv 2401.10774 (Medusa), 2401.15077 (EAGLE), static trees.*
    """

    name: ClassVar[str] = "fixed"
    Options: ClassVar[type[PartOptions]] = FixedOptions

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape

    @classmethod
    def declares(cls, options: FixedOptions) -> BuilderDeclaration:
        """A tree, or a chain if the shape is one; a file that is still a bare name counts as a tree."""
        return shape_declaration(options.known_shape, Draw.DETERMINISTIC, needs=frozenset(Gives))

    @classmethod
    def build(cls, options: FixedOptions, tools: BuildTools) -> "Fixed":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree))

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        rng: DraftRng,
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level: the nodes that have children in the shape. A shape too large is cut from its end."""
        sketch = TreeSketch(root_token, root_position)
        yield from grow_shape(self._shape, sketch, budget, _children)
        return sketch.freeze(Draw.DETERMINISTIC)


def _children(answer: Answer, counts: list[int], position: int) -> Iterator[Sequence[int]]:
    """The tokens of each frontier node's children, best first."""
    if isinstance(answer, DraftProbs):
        raise SpecdecError("'fixed' ranks logits or candidates; it received a warped q")
    best, _ = answer.top(max(counts))
    return (tokens[:count] for tokens, count in zip(best, counts, strict=True))
