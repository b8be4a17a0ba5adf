"""Tests of tokens against known probabilities; a p-value each, and one decision for all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FALSE_ALARM = 1e-6
"""Probability that a right decoder is refuted, over all tests of a run together."""

LEAST_EXPECTED = 5.0
"""Below it, cells are pooled, by what is expected and never by what was seen."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Test:
    """One test. samples: tokens that it looked at."""

    name: str
    p_value: float
    samples: int
    statistic: float


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's statistic, summed over independent multinomials, with its exact mean and variance under the known distribution.

    lumped: tokens expected in groups of several cells, within which nothing is seen.
    """

    statistic: float = 0.0
    cells: int = 0
    freedom: int = 0
    variance: float = 0.0
    samples: int = 0
    lumped: float = 0.0

    def __add__(self, other: "ChiSquare") -> "ChiSquare":
        return ChiSquare(
            self.statistic + other.statistic,
            self.cells + other.cells,
            self.freedom + other.freedom,
            self.variance + other.variance,
            self.samples + other.samples,
            self.lumped + other.lumped,
        )

    @property
    def blind(self) -> float:
        """The share of the distribution in such groups: a total variation of so much within them would not be seen."""
        return self.lumped / self.samples if self.samples else 1.0

    @property
    def p_value(self) -> float:
        """From the gamma distribution with this mean and variance: cells of few tokens have a longer tail than chi-square's."""
        if self.freedom < 1 or self.variance <= 0:
            return 1.0
        scale = self.variance / self.freedom
        return float(stats.gamma.sf(self.statistic, self.freedom / scale, scale=scale))


def focused(hits: float, expected: float, variance: float) -> tuple[float, float]:
    """(z, two-sided p-value) of a count of hits in sets that were fixed before the tokens were drawn.

    *Source: the focused 1-df test; it sees the whole of a leak towards the drafter, whatever the vocabulary.*
    """
    if variance <= 0:
        return 0.0, 1.0
    z = (hits - expected) / math.sqrt(variance)
    return z, float(2 * stats.norm.sf(abs(z)))


def chi_square(observed: Floats, probs: Floats, *, least: float = LEAST_EXPECTED, rest: bool = False) -> ChiSquare:
    """One multinomial against its distribution; cells that expect fewer than `least` are pooled. observed, probs: [cells].

    rest: whether the last cell stands for many tokens. A token of a cell with probability 0 makes the statistic infinite.
    """
    total = float(observed.sum())
    if total and float(observed[probs <= 0].sum()):
        return ChiSquare(math.inf, len(probs), 1, 1.0, int(total), 0.0)
    keep = pooled(probs * total, least=least)
    if keep is None:
        return ChiSquare()
    groups = int(keep.max()) + 1
    seen = np.bincount(keep, observed, groups)
    distribution = np.bincount(keep, probs, groups)
    expected = distribution * total
    statistic = float(((seen - expected) ** 2 / expected).sum())
    freedom = groups - 1
    variance = 2 * freedom + (float((1 / distribution).sum()) - groups**2 - 2 * groups + 2) / total
    members = np.bincount(keep, probs > 0, groups) + (np.arange(groups) == keep[-1]) * (rest and probs[-1] > 0)
    return ChiSquare(
        statistic, groups, freedom, max(variance, 1e-9), int(total), total * float(distribution[members > 1].sum())
    )


def pooled(expected: Floats, *, least: float = LEAST_EXPECTED) -> NDArray[np.int64] | None:
    """By cell, the group that it is pooled into; None where fewer than two groups can be made."""
    order = np.argsort(expected, kind="stable")
    groups = np.empty(len(expected), dtype=np.int64)
    mass, current = 0.0, 0
    for cell in order:
        groups[cell] = current
        mass += float(expected[cell])
        if mass >= least:
            current, mass = current + 1, 0.0
    if mass > 0 or (len(order) and groups[order[-1]] == current):
        groups[groups == current] = max(current - 1, 0)
    return groups if current >= 2 else None


def uniformity(values: Floats) -> list[Test]:
    """Kolmogorov-Smirnov and chi-square of numbers that should be uniform in (0, 1): the randomised PIT of a run."""
    count = len(values)
    if count < 40:
        return []
    test = stats.kstest(values, "uniform")
    bins = int(min(50, count // 20))
    observed = np.histogram(values, bins, (0, 1))[0].astype(np.float64)
    found = chi_square(observed, np.full(bins, 1 / bins))
    return [
        Test("PIT, Kolmogorov-Smirnov", float(test.pvalue), count, float(test.statistic)),
        Test("PIT, chi-square", found.p_value, count, found.statistic),
    ]


def pit(probs: Floats, keys: Floats, slot: int, uniform: float) -> float:
    """The randomised probability integral transform of the token at `slot`, with tokens ordered by `keys`, ties together."""
    key = keys[slot]
    below = float(probs[keys < key].sum())
    return below + uniform * float(probs[keys == key].sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: those below a are rejected with a family-wise false-alarm rate of a. *Source: Holm 1979.*"""
    count = len(p_values)
    adjusted = [0.0] * count
    worst = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted
