"""Drafts of two levels whose parents differ in how their children were drawn: a rule must look at each parent's own kind."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, ClassVar

from torch import Tensor

from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Frontier
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.drawn import DrawSiblings, add_drawn, freeze_drawn, stated_q
from specdec.tree_builders.pair import draw_pair
from specdec.tree_builders.top_then_one import draw_top_then_one
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch

COUNT = 2
"""Children of a node: two are the fewest for which kinds differ."""

MIXABLE = (Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP_THEN_ONE, Draw.PAIR)
"""Kinds that may stand beside others. Coupled drafts are of the target's noise, and no other draft of that tree may be."""


class MixedKindsOptions(PartOptions):
    """above, below: how the root's children are drawn, and how theirs are."""

    above: Draw
    below: Draw


class MixedKinds(TreeBuilder[MixedKindsOptions]):
    """Two children of the root, and two of each of these. Likeliest ones are of the same q."""

    name: ClassVar[str] = "mixed_kinds"
    Options: ClassVar[type[PartOptions]] = MixedKindsOptions

    def __init__(self, options: MixedKindsOptions) -> None:
        self._kinds = (options.above, options.below)

    @classmethod
    def declares(cls, options: MixedKindsOptions) -> BuilderDeclaration:
        """A tree of two levels, of a kind whose drafts are drawn."""
        drawn = options.below if options.above is Draw.DETERMINISTIC else options.above
        return BuilderDeclaration(drawn, Shape.TREE, frozenset({Gives.DISTRIBUTIONS}), max_nodes=COUNT + COUNT**2)

    @classmethod
    def build(cls, options: MixedKindsOptions, tools: BuildTools) -> "MixedKinds":
        """Nothing to resolve."""
        return cls(options)

    def grow(
        self, root_token: int, root_position: int, budget: Budget, rng: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level, as deep as the budget allows; a second level that it would cut is left out."""
        sketch = TreeSketch(root_token, root_position)
        rows: list[Tensor] = []
        row_of: dict[int, int] = {}
        draws: dict[int, tuple[int, ...]] = {}
        kinds: dict[int, Draw] = {}
        parents = [0]
        for kind in self._kinds[: budget.depth]:
            if len(sketch) - 1 + COUNT * len(parents) > budget.nodes:
                break
            draw = _drawing(kind, rng)
            for parent, q in zip(parents, stated_q((yield Frontier(sketch, tuple(parents)))), strict=True):
                draws[parent], kinds[parent] = add_drawn(sketch, parent, draw(q, COUNT)), kind
                if kind is not Draw.DETERMINISTIC:
                    row_of[parent] = len(rows)
                    rows.append(q)
            drawn = {child for parent in parents for child in draws[parent]}
            parents = sorted(child for child in drawn if sketch.tokens[child] not in budget.stop_ids)
            if not parents:
                break
        return replace(freeze_drawn(sketch, self._kinds[0], draws, rows, row_of), draw_kind=kinds)


def mixtures(accepts: frozenset[Draw]) -> Iterator[MixedKindsOptions]:
    """All ordered pairs of different kinds among those that a rule accepts."""
    for above, below in permutations([kind for kind in MIXABLE if kind in accepts], 2):
        yield MixedKindsOptions(above=above, below=below)


def _drawing(kind: Draw, rng: DraftRng) -> DrawSiblings:
    drawing: dict[Draw, Any] = {
        Draw.DETERMINISTIC: _likeliest,
        Draw.IID: partial(rng.draw, replacement=True),
        Draw.WITHOUT_REPLACEMENT: partial(rng.draw, replacement=False),
        Draw.TOP_THEN_ONE: partial(draw_top_then_one, rng),
        Draw.PAIR: partial(draw_pair, rng),
    }
    made: DrawSiblings = drawing[kind]
    return made


def _likeliest(q: Tensor, count: int) -> list[int]:
    tokens: list[int] = q.topk(min(count, len(q))).indices.tolist()
    return tokens
