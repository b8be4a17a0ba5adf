"""Random numbers whose every comparison is a branch, so that code which draws them can be enumerated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.errors import SpecError
from specdec.sampling.rng import RequestRng

Row = NDArray[np.float64]


class Uniform:
    """A number drawn uniformly from [0, 1), as far as comparisons have told: each comparison is a branch of the enumeration."""

    __array_ufunc__ = None

    def __init__(self, rng: RequestRng) -> None:
        self._rng = rng
        self._low, self._high = 0.0, 1.0

    def _below(self, bound: Any) -> Any:
        if np.ndim(bound):
            return self._below_each(np.asarray(bound, dtype=np.float64))
        limit = float(bound)
        if limit <= self._low or limit >= self._high:
            return limit >= self._high
        share = (limit - self._low) / (self._high - self._low)
        below = self._rng.target.flip(share)
        self._low, self._high = (self._low, limit) if below else (limit, self._high)
        return below

    def _below_each(self, bounds: Row) -> NDArray[np.bool_]:
        for bound in sorted(set(bounds.ravel().tolist())):
            self._below(bound)
        return bounds >= self._high

    def __lt__(self, bound: Any) -> Any:
        return self._below(bound)

    def __le__(self, bound: Any) -> Any:
        """The same: equality has probability 0, but at bound 0, where `u <= 0` may pass and `u < 0` may not."""
        return self._below(bound)

    def __gt__(self, bound: Any) -> Any:
        below = self._below(bound)
        return ~below if isinstance(below, np.ndarray) else not below

    __ge__ = __gt__

    def __mul__(self, factor: float) -> "Scaled":
        return Scaled(self, float(factor))

    __rmul__ = __mul__

    def __float__(self) -> float:
        raise SpecError(
            "the rule turns a random number into a float, so that its outcomes cannot be gone through: compare it with "
            "thresholds (u < p / q), or draw a token with uniforms.choose(weights)"
        )


@dataclass(frozen=True, slots=True)
class Scaled:
    """A uniform number times a positive factor."""

    __array_ufunc__ = None

    number: Uniform
    factor: float

    def __lt__(self, bound: Any) -> Any:
        return self.number < np.asarray(bound) / self.factor if np.ndim(bound) else self.number < bound / self.factor

    __le__ = __lt__

    def __gt__(self, bound: Any) -> Any:
        return self.number > np.asarray(bound) / self.factor if np.ndim(bound) else self.number > bound / self.factor

    __ge__ = __gt__


class Uniforms(Iterator[Uniform]):
    """Independent uniform numbers: `next(uniforms)`, or by place, `uniforms[0]`; and draws of tokens by weight."""

    def __init__(self, rng: RequestRng) -> None:
        self._rng = rng
        self._known: dict[int, Uniform] = {}
        self._position = self._count = 0

    def __next__(self) -> Uniform:
        self._count += 1
        return Uniform(self._rng)

    def __getitem__(self, place: int) -> Uniform:
        return self._known.setdefault(place, Uniform(self._rng))

    def choose(self, weights: Any) -> int:
        """A token with probability proportional to its weight."""
        row = torch.as_tensor(np.asarray(weights, dtype=np.float64))
        self._position += 1
        return self._rng.target.choose(torch.arange(len(row)), row, self._position)
