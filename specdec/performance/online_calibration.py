"""Estimated probabilities held against what happened, and corrected while they are used."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

CENTRES: Final = (0.05, 0.2, 0.45, 0.7, 0.9)
"""Estimates at which corrections are learned; between two of them both count, the nearer one more."""

HIGHEST: Final = 0.995
"""What no estimate exceeds: nothing that was only counted is certain."""

FADING: Final = 0.03
"""How much of what was learned one more expected hit displaces, so that a text that changes is followed."""


class Calibration:
    """Estimates times how often they came true, against how often they should have: all of them, then those near each.

    What holds for all is learned soon, what is special about high or low estimates later.
    before: what an estimate is worth as far as is known beforehand (the estimate itself by default). patience: expected hits,
    of all and at each centre, after which what happened weighs as much as what was known beforehand.
    """

    __slots__ = ("_all", "_before", "_expected", "_hits")

    def __init__(self, *, patience: float, before: Callable[[float], float] | None = None) -> None:
        self._before = before
        self._all = (patience, patience)
        self._hits = [patience] * len(CENTRES)
        self._expected = [patience] * len(CENTRES)

    def __call__(self, estimate: float) -> float:
        """The corrected estimate, from 0 to HIGHEST."""
        known = self._known(estimate)
        scaled = known * self._all[0] / self._all[1]
        return min(HIGHEST, scaled * sum(share * self._hits[n] / self._expected[n] for n, share in _shares(known)))

    def learn(self, estimate: float, hit: bool) -> None:
        """Enter whether something with this estimate came true."""
        known = self._known(estimate)
        hits, expected = self._all
        scaled = known * hits / expected
        for n, share in _shares(known):
            kept = 1 - FADING * share * known
            self._expected[n] = kept * self._expected[n] + share * scaled
            self._hits[n] = kept * self._hits[n] + share * hit
        kept = 1 - FADING * known
        self._all = (kept * hits + hit, kept * expected + known)

    def _known(self, estimate: float) -> float:
        return estimate if self._before is None else self._before(estimate)


def _shares(estimate: float) -> tuple[tuple[int, float], ...]:
    """Which centres an estimate belongs to, and by how much."""
    right = bisect_right(CENTRES, estimate)
    if right in (0, len(CENTRES)):
        return ((min(right, len(CENTRES) - 1), 1.0),)
    low, high = CENTRES[right - 1 : right + 1]
    share = (estimate - low) / (high - low)
    return ((right - 1, 1 - share), (right, share))
