"""`coupled`: children picked with the very noise by which the target will draw, in a given shape."""

from collections.abc import Generator, Iterator
from functools import partial
from typing import ClassVar

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Distributions, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import grow_shape, shape_declaration
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import TreeShape


class CoupledOptions(ShapeOptions):
    """Options of `coupled`: one of file, paths and widths; `widths: [1, 1, 1]` is a chain."""


class Coupled(TreeBuilder[CoupledOptions]):
    """A tree of given shape: the child of rank r has the r-th largest log q + G, G the target's own noise of its position.

    The target draws `argmax(log p + G)`, so that the nearer q is to p, the likelier the two agree: a single draft with at least
    (1 - TV) / (1 + TV), whatever the temperature, and always where q = p. At temperature 0 the target draws without noise, and
    the children are the likeliest, as in `fixed`.
    Drafts are not independent of the target's draws. The output distribution holds for all that only under a verifier which
    emits the target's draws themselves and accepts where a draft is equal: then the emitted tokens are the same for every
    tree. *Source: arXiv 2408.07978, for one draft; several children as the leading ranks of the same race.*
    """

    name: ClassVar[str] = "coupled"
    Options: ClassVar[type[PartOptions]] = CoupledOptions

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape

    @classmethod
    def declares(cls, options: CoupledOptions) -> BuilderDeclaration:
        """Coupled draws in a tree, or in a chain if the shape is one."""
        return shape_declaration(options.known_shape, Draw.COUPLED, needs=frozenset({Gives.DISTRIBUTIONS}))

    @classmethod
    def build(cls, options: CoupledOptions, tools: BuildTools) -> "Coupled":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree))

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level: the nodes that have children in the shape. A shape too large is cut from its end."""
        sketch = TreeSketch(root_token, root_position)
        yield from grow_shape(self._shape, sketch, budget, partial(_children, rng))
        return sketch.freeze(Draw.COUPLED)


def _children(rng: DraftRng, answer: Answer, counts: list[int], position: int) -> Iterator[list[int]]:
    """The tokens of each frontier node's children, best first."""
    if isinstance(answer, DraftProbs):
        return (rng.couple(q, count, position) for q, count in zip(answer.q, counts, strict=True))
    if not isinstance(answer, Distributions):
        raise SpecdecError("'coupled' perturbs a distribution; it received candidates")
    best, _ = answer.top(max(counts))
    return (tokens[:count] for tokens, count in zip(best, counts, strict=True))
