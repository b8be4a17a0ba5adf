"""`chains`: several independent chains drawn from q, joined into one tree."""

from collections.abc import Generator
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.drawn import add_drawn, freeze_drawn, stated_q
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch


class ChainsOptions(PartOptions):
    """Options of `chains`."""

    count: Annotated[int, Field(ge=1, le=64, description="chains, drawn independently of each other")] = 3
    length: Annotated[int, Field(ge=1, le=64, description="draft tokens of a chain")] = 4


class Chains(TreeBuilder[ChainsOptions]):
    """`count` i.i.d. chains of `length` tokens; common beginnings stand once, with a draw for each chain that goes through.

    A node's draws are i.i.d. from its q given all that was drawn above, since how many there are follows from the level above.
    A chain ends at a stop id, and where its q has no token. A budget of fewer nodes than chains drops chains, then levels,
    before anything is drawn. *Source: arXiv 2310.15141 (K i.i.d. drafts), 2602.16961.*
    """

    name: ClassVar[str] = "chains"
    Options: ClassVar[type[PartOptions]] = ChainsOptions

    def __init__(self, options: ChainsOptions) -> None:
        self._options = options

    @classmethod
    def declares(cls, options: ChainsOptions) -> BuilderDeclaration:
        """I.i.d. draws in a tree, or in a chain where there is one only."""
        return BuilderDeclaration(
            draw=Draw.IID,
            shape=Shape.CHAIN if options.count == 1 else Shape.CHAINS,
            needs=frozenset({Gives.DISTRIBUTIONS}),
            max_nodes=options.count * options.length,
            max_depth=options.length,
            max_children=(options.count,) * options.length,
        )

    @classmethod
    def build(cls, options: ChainsOptions, tools: BuildTools) -> "Chains":
        """Nothing to resolve."""
        return cls(options)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. q: [nodes with children, vocab], as received."""
        count = min(self._options.count, budget.nodes)
        sketch = TreeSketch(root_token, root_position)
        rows: list[Tensor] = []
        row_of: dict[int, int] = {}
        draws: dict[int, tuple[int, ...]] = {}
        chains_at = {0: count}
        for _ in range(min(self._options.length, budget.depth, budget.nodes // count)):
            if not chains_at:
                break
            answer = yield Frontier(sketch, tuple(chains_at))
            deeper: dict[int, int] = {}
            for (node, passing), q in zip(chains_at.items(), stated_q(answer), strict=True):
                if not bool(q.any()):
                    continue
                draws[node] = add_drawn(sketch, node, rng.draw(q, passing, replacement=True))
                row_of[node] = len(row_of)
                rows.append(q)
                for child in draws[node]:
                    if sketch.tokens[child] not in budget.stop_ids:
                        deeper[child] = deeper.get(child, 0) + 1
            chains_at = deeper
        return freeze_drawn(sketch, Draw.IID, draws, rows, row_of)
