"""`adaptive`: drafts as long as the next node is expected to gain more time than it costs, and not at all where none does."""

import math
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.errors import SpecdecError
from specdec.files.paths import DataFile
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.performance.acceptance_profile import AcceptanceProfile, read_acceptance
from specdec.performance.cost_model import CostModel, read_costs
from specdec.performance.step_cost import Prices, shipped_costs
from specdec.sampling.rng import DraftRng
from specdec.tree_builders.adaptive_state import Costs, Learned, Looks
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch, Worth, root_only

FARTHEST = 3
"""Levels that are imagined beyond the last one grown."""


class AdaptiveOptions(PartOptions):
    """Options of `adaptive`."""

    width: Annotated[int, Field(ge=1, le=64, description="most nodes expanded a level, and children of each")] = 6
    depth: Annotated[int, Field(ge=1, le=256, description="most levels below the root")] = 12
    nodes: Annotated[int, Field(ge=1, le=512, description="most drafted nodes, root excluded")] = 32
    cost: Annotated[
        DataFile | None,
        Field(description="a file of `specdec profile`; unset: those of strategy adaptive on two CPU cores"),
    ] = None
    calibration: Annotated[
        DataFile | None,
        Field(description="a file of `specdec acceptance`; unset: draft probabilities are taken as they are at first"),
    ] = None
    draft_level: Annotated[
        float | None,
        Field(ge=0, le=10, description="cost of a draft level, in plain decoding steps; unset: as the cost file says"),
    ] = None


class Adaptive(TreeBuilder[AdaptiveOptions]):
    """The nodes whose path probability is worth their share of the forward, in a tree grown level by level while that pays.

    A child's probability is the drafter's, corrected by how often such drafts were accepted (a file's calibration, then the
    sequence's own steps). A level is grown if the tokens a second that the step may then expect, by what levels usually gave,
    are more than without it. After several steps in which looking at the drafter did not pay, it is left alone for 1, 2, 4,
    ... 16 steps between two looks, by all sequences of a batch alike. Costs come from a file, never from the clock, so that a
    run can be repeated.

    Draws are deterministic: whether a node is kept depends on its own probability, so that kept draws would follow no q.
    *Source: the objective of Sequoia's hardware-aware search, arXiv 2402.12374, for one step at a time; EAGLE-2's confidence as
    acceptance, arXiv 2406.16858.*
    """

    name: ClassVar[str] = "adaptive"
    Options: ClassVar[type[PartOptions]] = AdaptiveOptions

    def __init__(self, options: AdaptiveOptions, costs: CostModel, profile: AcceptanceProfile | None) -> None:
        self._options = options
        self._costs = costs
        self._before = None if profile is None else profile.calibrated

    @classmethod
    def declares(cls, options: AdaptiveOptions) -> BuilderDeclaration:
        """Deterministic draws in a tree (a chain if only one node a level is wanted)."""
        return BuilderDeclaration(
            draw=Draw.DETERMINISTIC,
            shape=Shape.CHAIN if options.width == 1 else Shape.TREE,
            needs=frozenset(Gives),
            max_nodes=options.nodes,
            max_depth=min(options.depth, options.nodes),
            max_children=(options.width,) * min(options.depth, options.nodes),
        )

    @classmethod
    def build(cls, options: AdaptiveOptions, tools: BuildTools) -> "Adaptive":
        """Read the files. Raises SpecError for what is wrong in them."""
        costs = shipped_costs() if options.cost is None else read_costs(Path(options.cost))
        if options.calibration is None:
            return cls(options, costs, None)
        profile = read_acceptance(Path(options.calibration))
        profile.calibrated(0.5)
        return cls(options, costs, profile)

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        chance: DraftRng,
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One frontier a level. The tree holds the whole pool, with its worth: the batch decides what stays."""
        learned = budget.memory.kept
        if not isinstance(learned, Learned):
            learned = Learned(self._before)
            budget.memory.kept = learned
        looks = self._looks(budget, learned)
        if budget.last is not None:
            learned.hear(budget.last, looks)
        if looks.rests(learned, budget.rows, queue=budget.queue):
            return root_only(root_token, root_position)
        prices = Prices(self._costs, rows=budget.rows, context=root_position + 1, level=self._options.draft_level)
        growth = _Growth(self._options, budget, prices, learned, TreeSketch(root_token, root_position))
        while growth.beam:
            answer = yield Frontier(growth.sketch, tuple(growth.beam))
            growth.take(answer)
        learned.looked(growth.advantage(), growth.costs())
        return growth.tree()

    @staticmethod
    def _looks(budget: Budget, learned: Learned) -> Looks:
        """The sequence's own, or that of the batch."""
        if budget.rows == 1:
            return learned.alone
        if not isinstance(budget.batch.kept, Looks):
            budget.batch.kept = Looks(budget.rows)
        return budget.batch.kept


class _Growth:
    """One draft in the making.

    sketch: all nodes that were expanded or kept in the pool. chances: by node. beam: nodes to be expanded next.
    """

    def __init__(self, options: AdaptiveOptions, budget: Budget, prices: Prices, learned: Learned, sketch: TreeSketch) -> None:
        self._options = options
        self._width = options.width
        self._nodes = min(options.nodes, budget.nodes)
        self._depth = min(options.depth, budget.depth)
        self._stop_ids = budget.stop_ids
        self._prices = prices
        self._learned = learned
        self._expanded: list[int] = []
        self._pool: list[int] = []
        self.sketch = sketch
        self.chances = [1.0]
        self.beam = [0] if self._nodes > 0 and self._depth > 0 else []
        learned.begin(sketch)

    @property
    def _spent(self) -> float:
        return self._prices.draft(self._expanded)

    def take(self, answer: Answer) -> None:
        """Enter the children of the beam, and choose the next one: empty where another level does not pay."""
        if isinstance(answer, DraftProbs):
            raise SpecdecError("'adaptive' ranks logits or candidates; it received a warped q")
        self._expanded.append(len(self.beam))
        level: list[int] = []
        for node, tokens, scores in zip(self.beam, *answer.top(self._width), strict=True):
            chances = self._learned.chances(node, tokens, [math.exp(min(score, 0.0)) for score in scores], self.chances[node])
            for token, chance in zip(tokens, chances, strict=True):
                level.append(self.sketch.add(node, token))
                self.chances.append(self.chances[node] * chance)
        ranked = sorted(self._pool + level, key=lambda node: (-self.chances[node], node))
        self._pool = ranked[: self._nodes]
        self.beam = self._next_beam(level)

    def _next_beam(self, level: list[int]) -> list[int]:
        """The nodes of the last level that are worth expanding, best first."""
        depth = self.sketch.depths[level[0]] if level else self._depth
        if depth >= self._depth:
            return []
        kept = set(self._pool)
        open_nodes = [node for node in level if node in kept and self.sketch.tokens[node] not in self._stop_ids]
        open_nodes.sort(key=lambda node: (-self.chances[node], node))
        gains = sorted((self.chances[node] for node in self._pool), reverse=True)
        now, share = self._prices.best(gains, self._spent)
        wide = [node for node in open_nodes if self._learned.best_child(depth) * self.chances[node] >= share][: self._width]
        if not wide:
            return []
        then = self._imagined(gains, [self.chances[node] for node in wide], depth)
        return wide if then > now else []

    def _imagined(self, gains: list[float], beam: list[float], depth: int) -> float:
        """The most tokens a second that up to FARTHEST more levels may give, if their children are as usual."""
        expanded, best = list(self._expanded), 0.0
        for level in range(depth, min(depth + FARTHEST, self._depth)):
            expanded.append(len(beam))
            children = sorted((c * p for c in beam for p in self._learned.outlook(level)), reverse=True)[: self._nodes]
            gains = sorted(gains + children, reverse=True)[: self._nodes]
            best = max(best, self._prices.best(gains, self._prices.draft(expanded))[0])
            beam = children[:1]
        return best

    def advantage(self) -> float:
        """Plain steps that this one is expected to save, drafting paid for; negative where it only cost."""
        return self._prices.advantage([self.chances[node] for node in self._pool], self._spent)

    def costs(self) -> Costs:
        """What the step costs in plain steps, by the nodes that are drafted in the end."""
        return partial(self._prices.relative, spent=self._spent)

    def tree(self) -> DraftTree:
        """The pool as a tree, with what it is worth."""
        sketch = TreeSketch(self.sketch.tokens[0], self.sketch.root_position)
        number = {0: 0}
        for node in sorted(self._pool):
            number[node] = sketch.add(number[self.sketch.parents[node]], self.sketch.tokens[node])
        gains = (1.0, *(self.chances[node] for node in sorted(self._pool)))
        tree = sketch.freeze(Draw.DETERMINISTIC)
        return replace(tree, worth=Worth(gains, self._prices.forward, self._spent)) if self._pool else tree
