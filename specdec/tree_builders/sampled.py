"""`sampled`: children drawn from the drafter's q, in a given shape."""

from collections.abc import Generator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.base import shape_declaration
from specdec.tree_builders.shape_options import ShapeOptions
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import RankPath, TreeShape


class SampledOptions(ShapeOptions):
    """Options of `sampled`: one of file, paths and widths, and how to draw."""

    replacement: Annotated[bool, Field(description="draw siblings i.i.d., so that they may repeat")] = False


class Sampled(TreeBuilder[SampledOptions]):
    """A tree of given shape whose children are drawn from q; the r-th draw takes the subtree of rank r.

    Why each choice keeps the distribution, that is why siblings given everything drawn before are still draws from their
    parent's q: - How many children a node gets depends on its place in the shape, on the budget, and on tokens above it,
    never on the
      children themselves. A shape too large is cut by position, before anything is drawn.
    - Without replacement, draws stop early only where q has no mass left: then every possible token is a child.
    - An i.i.d. repeat stays in `draws`, where the verifier tries it again; its node, and the subtree of the rank that came
      first, exist once. The subtree of the repeat's own rank is left out: its size follows from draws above it only.
    - Below a stop id nothing is drawn. The stop id itself is kept, and the decision looks at no token below.
    - No token is ranked, pruned or merged after it was drawn, and q is stored as it was drawn from, row by row.
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
            options.known_shape,
            Draw.IID if options.replacement else Draw.WITHOUT_REPLACEMENT,
            needs=frozenset({Gives.DISTRIBUTIONS}),
        )

    @classmethod
    def build(cls, options: SampledOptions, tools: BuildTools) -> "Sampled":
        """Read the tree file. Raises SpecError for one that is malformed."""
        return cls(options.shape(tools.find_tree), replacement=options.replacement)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children in the shape, vocab], as received."""
        counts = self._shape.cut(nodes=budget.nodes, depth=budget.depth).child_counts()
        sketch = TreeSketch(root_token, root_position)
        rows: list[Tensor] = []
        row_of: dict[int, int] = {}
        draws: dict[int, tuple[int, ...]] = {}
        frontier: dict[RankPath, int] = {(): 0} if counts else {}
        while frontier:
            answer = yield Frontier(sketch, tuple(frontier.values()))
            if not isinstance(answer, DraftProbs):
                raise SpecdecError("'sampled' draws from a warped q; it received logits or candidates")
            deeper: dict[RankPath, int] = {}
            for (path, node), q in zip(frontier.items(), answer.q, strict=True):
                if not bool(q.any()):
                    continue
                drawn = rng.draw(q, counts[path], replacement=self._replacement)
                draws[node] = _add(sketch, node, drawn)
                row_of[node] = len(row_of)
                rows.append(q)
                for rank, child in _first_ranks(draws[node]):
                    if (*path, rank) in counts and sketch.tokens[child] not in budget.stop_ids:
                        deeper[*path, rank] = child
            frontier = deeper
        return sketch.freeze(
            Draw.IID if self._replacement else Draw.WITHOUT_REPLACEMENT,
            draw_order=draws,
            q=torch.stack(rows) if rows else None,
            q_row=[row_of.get(node, -1) for node in range(len(sketch))],
        )


def _add(sketch: TreeSketch, parent: int, tokens: list[int]) -> tuple[int, ...]:
    """The children in draw order, a node for each different token."""
    node_of: dict[int, int] = {}
    for token in tokens:
        if token not in node_of:
            node_of[token] = sketch.add(parent, token)
    return tuple(node_of[token] for token in tokens)


def _first_ranks(children: tuple[int, ...]) -> list[tuple[int, int]]:
    """(rank, child) where each child occurs first."""
    return [(rank, child) for rank, child in enumerate(children) if child not in children[:rank]]
