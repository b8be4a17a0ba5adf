"""`fixed`: the drafter's best children in the shape of a tree file."""

from collections.abc import Generator
from typing import ClassVar

from specdec.chance import DraftChance
from specdec.contracts import BuilderDeclaration, Draw, Gives, Shape
from specdec.errors import SpecdecError
from specdec.interfaces import Budget, BuildTools, Frontier, PartOptions, TreeBuilder
from specdec.records import Answer, DraftProbs
from specdec.tree import DraftTree, TreeSketch
from specdec.tree_files import ShapeOptions
from specdec.tree_shapes import RankPath, TreeShape


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
        shape = options.known_shape
        return BuilderDeclaration(
            draw=Draw.DETERMINISTIC,
            shape=Shape.CHAIN if shape is not None and shape.is_chain else Shape.TREE,
            needs=frozenset(Gives),
            max_nodes=shape.num_nodes if shape is not None else None,
            max_depth=shape.depth if shape is not None else None,
        )

    @classmethod
    def build(cls, options: FixedOptions, tools: BuildTools) -> "Fixed":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree))

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        chance: DraftChance,  # noqa: ARG002
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level: the nodes that have children in the shape. A shape too large is cut from its end."""
        counts = self._shape.cut(nodes=budget.nodes, depth=budget.depth).child_counts()
        sketch = TreeSketch(root_token, root_position)
        frontier: dict[RankPath, int] = {(): 0} if counts else {}
        while frontier:
            answer = yield Frontier(sketch, tuple(frontier.values()))
            if isinstance(answer, DraftProbs):
                raise SpecdecError("'fixed' ranks logits or candidates; it received a warped q")
            rows, _ = answer.top(max(counts[path] for path in frontier))
            deeper: dict[RankPath, int] = {}
            for (path, node), tokens in zip(frontier.items(), rows, strict=True):
                for rank, token in enumerate(tokens[: counts[path]]):
                    child = sketch.add(node, token)
                    if (*path, rank) in counts and token not in budget.stop_ids:
                        deeper[*path, rank] = child
            frontier = deeper
        return sketch.freeze(Draw.DETERMINISTIC)
