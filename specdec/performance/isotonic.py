"""Rising curves through measured points: least squares under the wish that values never fall."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field


def rising(values: Sequence[float], weights: Sequence[float] | None = None) -> tuple[float, ...]:
    """The nearest values that never fall, in weighted least squares. Order is kept: larger input, no smaller output.

    scipy's gives the same, but takes some 0.4 s to import, which every `specdec check` would wait for. *Source: pool adjacent
    violators, Ayer et al. 1955.*
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total if total else (low + high) / 2
            pools[-2:] = [(mean, total, low_size + high_size)]
    return tuple(value for value, _, size in pools for _ in range(size))


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines between points that never fall; level before the first, and after the last as steep as its last half.

    at: rising places. values: as many. `limit` caps what is read off; None: nothing does.
    """

    at: tuple[float, ...]
    values: tuple[float, ...]
    limit: float | None = None
    _slope: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", rising(self.values))
        half = bisect_right(self.at, self.at[-1] / 2) - 1
        start = min(max(half, 0), max(len(self.at) - 2, 0))
        run = self.at[-1] - self.at[start]
        object.__setattr__(self, "_slope", (self.values[-1] - self.values[start]) / run if run else 0.0)

    def __call__(self, place: float) -> float:
        """The value at `place`."""
        index = bisect_right(self.at, place)
        if index == 0:
            value = self.values[0]
        elif index == len(self.at):
            value = self.values[-1] + self._slope * (place - self.at[-1])
        else:
            left, right = self.at[index - 1], self.at[index]
            share = (place - left) / (right - left)
            value = self.values[index - 1] * (1 - share) + self.values[index] * share
        return value if self.limit is None else min(value, self.limit)
