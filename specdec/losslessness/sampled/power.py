"""What a run could have seen, and what it leaves possible: total variations, at stated confidence."""

import math
from collections.abc import Callable

from scipy import optimize, stats

POWER = 0.9
CONFIDENCE = 0.95


def visible_along(standard_error: float, *, alpha: float, sides: int = 2) -> float:
    """The smallest shift along one direction that a test at `alpha` sees with power 0.9; standard_error: of the mean shift."""
    return min(1.0, float((stats.norm.isf(alpha / sides) + stats.norm.ppf(POWER)) * standard_error))


def visible_anywhere(freedom: int, samples: int, *, alpha: float) -> float:
    """The smallest total variation, of the distribution that is hardest to see, for which chi-square has power 0.9.

    A distribution at total variation e has a chi-square distance of at least 4 e^2.
    """
    if freedom < 1 or samples < 1:
        return 1.0
    critical = float(stats.chi2.isf(alpha, freedom))

    def lacking(shift: float) -> float:
        return float(stats.ncx2.sf(critical, freedom, shift)) - POWER

    return _distance(_root(lacking, critical), samples)


def bound_along(shift: float, standard_error: float) -> float:
    """The shift along one direction is at most this, at 95 % confidence."""
    return min(1.0, abs(shift) + float(stats.norm.isf((1 - CONFIDENCE) / 2)) * standard_error)


def bound_anywhere(statistic: float, freedom: int, samples: int) -> float:
    """The mean total variation is at most this, at 95 % confidence, over the cells that chi-square looked at.

    By Cauchy-Schwarz from an upper limit on the noncentrality. A statistic below its mean counts as its mean.
    """
    if freedom < 1 or samples < 1 or not math.isfinite(statistic):
        return 1.0

    def lacking(shift: float) -> float:
        return (1 - CONFIDENCE) - float(stats.ncx2.cdf(max(statistic, freedom), freedom, shift))

    return _distance(_root(lacking, statistic + freedom), samples)


def _root(lacking: Callable[[float], float], start: float) -> float:
    high = max(start, 10.0)
    while lacking(high) < 0:
        high *= 2
    return float(optimize.brentq(lacking, 1e-9, high, xtol=1e-6, rtol=1e-6))


def _distance(noncentrality: float, samples: int) -> float:
    return min(1.0, 0.5 * math.sqrt(noncentrality / samples))
