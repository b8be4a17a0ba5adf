"""What a step costs, and whether what it may gain is worth that: the arithmetic of builders that weigh costs."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specdec.performance.cost_model import CostModel, read_costs

MEASURED = Path(__file__).parent


def shipped_costs() -> CostModel:
    """The costs of the embedded model with its EAGLE-3 head and the suffix automaton on two CPU cores, in bfloat16."""
    return read_costs(MEASURED / "builtin-costs.yaml")


def best_size(gains: Iterable[float], seconds: Callable[[int], float], *, plain_tokens: float = 1.0) -> tuple[int, float]:
    """How many drafted nodes give the most expected tokens a second, and how many that are; of equal numbers the smaller.

    Args:
        gains: Expected tokens that each further node adds, the best first.
        seconds: What a step costs, by drafted nodes.
        plain_tokens: Expected tokens of a step without drafted nodes.
    """
    expected = plain_tokens
    size, best = 0, expected / seconds(0)
    for count, gain in enumerate(gains, 1):
        expected += gain
        rate = expected / seconds(count)
        if rate > best:
            size, best = count, rate
    return size, best


class Prices:
    """The costs of one step of one row among `rows` that are taken to draft alike and share each forward.

    level: cost of a draft level in plain steps, in place of what the cost model says.
    """

    __slots__ = ("_context", "_costs", "_forward", "_level", "_plain", "_rows")

    def __init__(self, costs: CostModel, *, rows: int, context: int, level: float | None = None) -> None:
        self._costs = costs
        self._rows = rows
        self._context = context
        self._plain = self.forward(rows) - costs.overhead_seconds + costs.plain_overhead_seconds
        self._level = None if level is None else level * self._plain
        self._forward: list[float] = [self._plain]

    def forward(self, new_tokens: int) -> float:
        """Seconds of a step without its draft, by the tokens of all rows together."""
        return self._costs.forward(new_tokens, self._context) + self._costs.overhead_seconds

    def of_size(self, nodes: int) -> float:
        """The same by drafted nodes of each row; without any it is a step of plain decoding."""
        while len(self._forward) <= nodes:
            self._forward.append(self.forward(self._rows * (len(self._forward) + 1)))
        return self._forward[nodes]

    def draft(self, expanded: Sequence[int]) -> float:
        """Seconds of drafting, by nodes expanded at each level."""
        if self._level is not None:
            return self._level * len(expanded)
        return self._costs.draft(expanded, self._rows)

    def best(self, gains: Sequence[float], spent: float) -> tuple[float, float]:
        """The most tokens a second with the first so many of `gains` (falling), and the chance that pays for one node more."""
        size, rate = best_size(gains, lambda nodes: self.of_size(nodes) + spent)
        return rate, rate * (self.of_size(size + 1) - self.of_size(size))

    def advantage(self, gains: Sequence[float], spent: float) -> float:
        """Plain steps that the best size saves, on average; with nothing drafted, minus what looking cost."""
        expected, best = 1.0, 1.0 - self.relative(0, spent=spent)
        for count, gain in enumerate(sorted(gains, reverse=True), 1):
            expected += gain
            best = max(best, expected - self.relative(count, spent=spent))
        return best

    def relative(self, nodes: int, *, spent: float) -> float:
        """What a step with so many drafted nodes of each row costs, in plain steps."""
        return (self.of_size(nodes) + spent) / self._plain
