"""What a builder that weighs costs has learned about one sequence: how drafts fare, and whether looking at them pays."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from specdec.interfaces.results import StepRecord
from specdec.performance.online_calibration import Calibration
from specdec.trees.draft_tree import TreeSketch, follow

PATIENCE = 4.0
"""Expected hits after which the sequence's own acceptance weighs as much as what was known beforehand."""

USUAL: Final = ((0.55, 0.12, 0.05), (0.5, 0.12, 0.05))
"""Chances of a node's children by rank, at the root and below it, before anything was seen."""

USUAL_WEIGHT = 4.0
"""Nodes that USUAL counts for."""

FADING = 0.9
"""What a step counts beside the next one, in the balance of whether looking pays."""

CREDIT: Final = (1.2, 4.0)
"""The balance at first: plain steps saved, in how many steps; of a batch, in so many that have as many reports."""

TOLERANCE = 0.02
"""Plain steps that a look may lose, on average, before the drafter is left alone."""

LAG = 0.2
"""Plain steps that a step of a large batch loses: sequences that get ahead end early, and the last go on by themselves."""

LONGEST_REST = 16
"""Steps between two looks at a drafter that does not pay."""

Costs: TypeAlias = Callable[[int], float]
"""Drafted nodes to what the step cost, in plain steps."""


class Looks:
    """Whether looking at the drafter pays: for one sequence, or for all that decode together and wait for each other's drafts.

    Sequences of a batch look together or not at all, since one that did not would spare the others nothing.
    """

    def __init__(self, rows: int = 1) -> None:
        self._balance, self._weight = (value / rows for value in CREDIT)
        self._rest = 0
        self._left = 0
        self._reports: list[float] = []
        self._asked: set[Learned] = set()
        self._rows = 0
        self._looking = False

    def report(self, saved: float) -> None:
        """Plain steps that a look of one sequence saved."""
        self._reports.append(saved)

    def rests(self, asker: "Learned", rows: int, *, queue: bool = False) -> bool:
        """Whether the drafter is to be left alone in this step, which is one of `rows` sequences. All get the same answer.

        queue: whether others wait to take the place of one that ends.
        """
        if asker in self._asked or len(self._asked) >= self._rows:
            self._asked.clear()
            self._rows = rows
            self._decide(0.0 if queue else LAG * (1 - 1 / rows))
        self._asked.add(asker)
        return not self._looking

    def _decide(self, lag: float) -> None:
        """By what is known of the last look; the first sequence of a step asks before the others have reported."""
        if self._left == 0 and self._looking and self._reports:
            saved = sum(self._reports) / len(self._reports) - lag
            self._reports.clear()
            self._balance = FADING * self._balance + saved
            self._weight = FADING * self._weight + 1
            short = self._balance / self._weight < -TOLERANCE
            self._rest = min(max(2 * self._rest, 1), LONGEST_REST) if short else 0
            self._left = self._rest
        self._looking = self._left == 0
        self._left = max(self._left - 1, 0)


class Learned:
    """Owned by one sequence; see `Adaptive`.

    before: chance of acceptance by draft probability, as far as it was measured beforehand.
    """

    def __init__(self, before: Callable[[float], float] | None) -> None:
        self._calibrations = [Calibration(patience=PATIENCE, before=before) for _ in USUAL]
        self._usual = [[USUAL_WEIGHT, *(USUAL_WEIGHT * chance for chance in row)] for row in USUAL]
        self._sketch: TreeSketch | None = None
        self._said: dict[int, list[tuple[int, float]]] = {}
        self._look: tuple[float, Costs] | None = None
        self.alone = Looks()

    def begin(self, sketch: TreeSketch) -> None:
        """A draft begins."""
        self._sketch = sketch

    def chances(self, node: int, tokens: Sequence[int], estimates: Sequence[float], reached: float) -> list[float]:
        """Corrected chances of a node's children, given the node; `reached`: the node's own chance."""
        self._said[node] = list(zip(tokens, estimates, strict=True))
        calibration = self._calibrations[min(node, 1)]
        corrected = [calibration(estimate) for estimate in estimates]
        total = sum(corrected)
        corrected = [chance / total for chance in corrected] if total > 1 else corrected
        usual, ranked = self._usual[min(node, 1)], sorted(corrected, reverse=True)
        usual[0] += reached
        for rank, chance in enumerate(ranked[: len(usual) - 1], 1):
            usual[rank] += reached * chance
        return corrected

    def outlook(self, depth: int) -> list[float]:
        """The usual chances of the best children of a node at `depth`, by rank."""
        weight, *sums = self._usual[min(depth, 1)]
        return [total / weight for total in sums]

    def best_child(self, depth: int) -> float:
        """The usual chance of the best child of a node at `depth`."""
        return self.outlook(depth)[0]

    def looked(self, advantage: float, costs: Costs) -> None:
        """The drafter was looked at: the plain steps that this is expected to save."""
        self._look = (advantage, costs)

    def hear(self, last: StepRecord, looks: "Looks") -> None:
        """Hold what was said along the way against the tokens that were emitted since, and report what looking saved.

        That is half what was expected, which varies less, and half as it turned out.
        """
        if self._look is not None:
            advantage, costs = self._look
            looks.report((advantage + last.committed - costs(last.drafted)) / 2)
        for node, token in () if self._sketch is None else follow(self._sketch, last.emitted):
            for offered, estimate in self._said.get(node, ()):
                self._calibrations[min(node, 1)].learn(estimate, offered == token)
        self._sketch, self._said, self._look = None, {}, None
