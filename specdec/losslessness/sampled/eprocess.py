"""Bets against losslessness: wealth that stays small on a right decoder, however long one looks."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from specdec.losslessness.levels import Curve
from specdec.losslessness.sampled.statistics import Floats

STAKES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
MOST_POINTS = 400
"""Of a curve that is kept for a picture."""


class EProcess:
    """The mean wealth of gamblers who bet that the tokens follow (1 - s) p + s a, for every stake s and alternative a.

    Under p it is a martingale that starts at 1, so that the probability that it ever reaches 1/alpha is at most alpha, at any
    stopping time (Ville). *Source: arXiv 2210.01948.*
    """

    def __init__(self, alternatives: Sequence[str]) -> None:
        self._alternatives = tuple(alternatives)
        self._log_wealth = np.zeros((len(self._alternatives), len(STAKES)))
        self._tokens = 0
        self._points: list[tuple[int, float]] = [(0, 0.0)]
        self.best = 0.0

    def add(self, ratios: Floats) -> None:
        """Tokens in the order in which they were drawn. ratios: [tokens, alternatives], a(y) / p(y) at the token drawn."""
        if not len(ratios):
            return
        stakes = np.array(STAKES)
        with np.errstate(divide="ignore"):
            steps = np.log1p(np.maximum(stakes * (ratios[:, :, None] - 1), -1.0))
        paths = self._log_wealth + np.cumsum(steps, 0)
        wealth = _log_mean(paths.reshape(len(ratios), -1))
        self.best = max(self.best, float(wealth.max()))
        self._log_wealth = paths[-1]
        self._tokens += len(ratios)
        self._points.append((self._tokens, float(wealth[-1])))
        if len(self._points) > MOST_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]

    @property
    def p_value(self) -> float:
        """One over the highest wealth so far: valid whenever one stops."""
        return min(1.0, math.exp(-self.best))

    @property
    def tokens(self) -> int:
        """How many were bet on."""
        return self._tokens

    def curve(self, name: str) -> Curve:
        """log10 of the wealth by tokens."""
        x, y = zip(*self._points, strict=True)
        return Curve("wealth", name, tuple(map(float, x)), tuple(max(-6.0, value / math.log(10)) for value in y))


def _log_mean(values: Floats) -> Floats:
    result: Floats = logsumexp(values, axis=1) - math.log(values.shape[1])
    return result
