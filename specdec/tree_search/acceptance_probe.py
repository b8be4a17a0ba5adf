"""Acceptance measured: by following a known answer through the drafter's best tokens, or from the steps of a strategy."""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import ClassVar

from specdec.decoding.callbacks import StepInfo, draft_levels, ranked_children
from specdec.errors import SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Candidates, DraftProbs, Frontier
from specdec.performance.acceptance_profile import CalibrationBin
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch, root_only
from specdec.trees.tree_shape import RankPath

EDGES = (0.001, 0.003, 0.01, 0.02, 0.05, *(step / 10 for step in range(1, 10)), 0.95, 0.98, 0.99, 0.997)
"""Between the bins of draft probability."""


@dataclass(slots=True)
class Trials:
    """Drafted children of reached nodes: the probability that the drafter gave them, and whether they were accepted."""

    _sums: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))

    def add(self, probability: float, *, accepted: bool) -> None:
        """Count one child."""
        sums = self._sums[sum(edge <= probability for edge in EDGES)]
        sums[0] += 1
        sums[1] += min(probability, 1.0)
        sums[2] += accepted

    def merge(self, other: "Trials") -> None:
        """Count all children of another count too."""
        for index, sums in other._sums.items():
            self._sums[index] = [mine + theirs for mine, theirs in zip(self._sums[index], sums, strict=True)]

    def bins(self) -> tuple[CalibrationBin, ...]:
        """By rising probability; empty bins are left out."""
        rows = [self._sums[index] for index in sorted(self._sums)]
        return tuple(CalibrationBin(probability=p / n, tested=int(n), accepted=int(a)) for n, p, a in rows)


@dataclass(slots=True)
class Offers:
    """How many children a drafter that gives candidates has for the nodes that it is asked about, by depth."""

    asked: list[int] = field(default_factory=list)
    offered: list[list[int]] = field(default_factory=list)

    def add(self, depth: int, children: int, width: int) -> None:
        """Count one node at `depth`; ranks from `width` on are not looked at."""
        while len(self.asked) <= depth:
            self.asked.append(0)
            self.offered.append([0] * width)
        self.asked[depth] += 1
        for rank in range(min(children, width)):
            self.offered[depth][rank] += 1


class Probe(TreeBuilder[PartOptions]):
    """Notes how far a full tree of `width` children a node would have followed an answer that is known; drafts nothing.

    Every token of the answer is a root once, whatever would have been accepted before, so that the counts belong to the text
    and not to the steps of one tree. A drafter of candidates may have none: where the answer leaves its drafts, its best ones
    are followed, and what it offers is counted on all levels. known: prompt and answer.
    """

    name: ClassVar[str] = "probe"
    Options: ClassVar[type[PartOptions]] = PartOptions

    def __init__(self, known: Sequence[int], *, width: int, depth: int, trials: Trials, offers: Offers) -> None:
        self._known = known
        self._width = width
        self._depth = depth
        self._trials = trials
        self._offers = offers
        self.paths: list[RankPath] = []
        self.lengths: list[int] = []

    @classmethod
    def declares(cls, options: PartOptions) -> BuilderDeclaration:
        """Deterministic draws."""
        return BuilderDeclaration(Draw.DETERMINISTIC, Shape.TREE, frozenset(Gives))

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Probe":
        """Is made by hand: it needs an answer."""
        raise SpecdecError("a probe follows an answer and is not built from a spec")

    def grow(
        self,
        root_token: int,
        root_position: int,
        budget: Budget,
        chance: DraftRng,
    ) -> Generator[Frontier, Answer, DraftTree]:
        """One node a level: the one that the answer takes, else the drafter's best."""
        sketch = TreeSketch(root_token, root_position)
        node, ranks, on_the_way, levels = 0, [], True, 0
        for depth, token in enumerate(self._known[root_position + 1 : root_position + 1 + self._depth]):
            answer = yield Frontier(sketch, (node,))
            if isinstance(answer, DraftProbs):
                raise SpecdecError("a probe ranks logits or candidates; it received a warped q")
            (tokens,), (scores,) = answer.top(self._width)
            levels += bool(tokens)
            if isinstance(answer, Candidates):
                self._offers.add(depth, len(tokens), self._width)
            if on_the_way:
                for drafted, score in zip(tokens, scores, strict=True):
                    self._trials.add(exp(score), accepted=drafted == token)
                on_the_way = token in tokens
                ranks += [tokens.index(token)] if on_the_way else []
            if not tokens or not (on_the_way or isinstance(answer, Candidates)):
                break
            best = token if on_the_way else tokens[0]
            if best in budget.stop_ids:
                break
            node = sketch.add(node, best)
        self.paths.append(tuple(ranks))
        self.lengths.append(levels)
        return root_only(root_token, root_position)


class Listener(TreeBuilder[PartOptions]):
    """Does what `inner` does, and remembers what the drafter said of each node, by the tokens that lead to it."""

    name: ClassVar[str] = "listener"
    Options: ClassVar[type[PartOptions]] = PartOptions

    def __init__(self, inner: TreeBuilder) -> None:
        self._inner = inner
        self._heard: dict[tuple[int, ...], Callable[[Sequence[int]], list[float]]] = {}

    @classmethod
    def declares(cls, options: PartOptions) -> BuilderDeclaration:
        """Is made by hand: what it wraps declares."""
        raise SpecdecError("a listener wraps a builder and is not declared by a spec")

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Listener":
        """Is made by hand."""
        raise SpecdecError("a listener wraps a builder and is not built from a spec")

    def grow(
        self, root_token: int, root_position: int, budget: Budget, chance: DraftRng
    ) -> Generator[Frontier, Answer, DraftTree]:
        """What `inner` grows."""
        self._heard = {}
        steps = self._inner.grow(root_token, root_position, budget, chance)
        try:
            asked = next(steps)
            while True:
                answer = yield asked
                for row, node in enumerate(asked.nodes):
                    self._heard[tuple(asked.tree.path(node))] = _probabilities(answer, row)
                asked = steps.send(answer)
        except StopIteration as stop:
            tree: DraftTree = stop.value
            return tree

    def probabilities(self, path: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """What the drafter gave to `tokens` as children of the node that the tokens `path` lead to."""
        return self._heard[tuple(path)](tokens)


def _probabilities(answer: Answer, row: int) -> Callable[[Sequence[int]], list[float]]:
    """Reads the probabilities of some tokens off one row of an answer, when it is asked."""

    def of(tokens: Sequence[int]) -> list[float]:
        if isinstance(answer, DraftProbs):
            return [float(answer.q[row, token]) for token in tokens]
        listed, scores = (rows[row] for rows in answer.top(max(1, len(tokens))))
        known = {token: exp(score) for token, score in zip(listed, scores, strict=True)}
        return [known.get(token, 0.0) for token in tokens]

    return of


@dataclass(slots=True)
class StepCounts:
    """Counts of a strategy's own steps. Only nodes that had children count as reached; ranks are places in draw order."""

    listener: Listener
    trials: Trials
    reached: list[int] = field(default_factory=list)
    accepted: list[list[int]] = field(default_factory=list)

    def step_callback(self, info: StepInfo) -> None:
        """Count one step."""
        for depth, level in enumerate(draft_levels(info)):
            if not level.num_children:
                continue
            while len(self.reached) <= depth:
                self.reached.append(0)
                self.accepted.append([])
            self.reached[depth] += 1
            row = self.accepted[depth]
            row += [0] * (level.num_children - len(row))
            if level.rank is not None:
                row[level.rank] += 1
            self._calibrate(info, level.node, level.rank)

    def _calibrate(self, info: StepInfo, node: int, accepted: int | None) -> None:
        tokens = [info.tree.tokens[child] for child in ranked_children(info.tree, node)]
        heard = self.listener.probabilities(info.tree.path_tokens(node), tokens)
        for rank, probability in enumerate(heard):
            self.trials.add(probability, accepted=rank == accepted)
