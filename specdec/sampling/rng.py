"""All randomness of production, seeded: one stream for drafts, one for verification. Nothing else may draw a random number."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.sampling.keyed_noise import gumbels, mix, signed


class DraftRng(ABC):
    """The random draws of one sequence's draft."""

    @abstractmethod
    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        """Token ids drawn from `probs` [vocab], in the order in which they were drawn.

        Without replacement there are fewer than `count` once the support is exhausted.
        """

    @abstractmethod
    def flip(self, probability: float) -> bool:
        """True with this probability."""

    @abstractmethod
    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        """The `count` ids with the largest log(probs) + G, best first; G is the noise by which the target draws at `position`.

        The first is what the target would draw there if `probs` [vocab] were its own. Fewer once the support is exhausted.
        Only for builders that declare COUPLED draws: what they draft is not independent of the verifier's choices.
        Source: arXiv 2408.07978.
        """


class TargetRng(ABC):
    """The random draws of one sequence's verification."""

    @abstractmethod
    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        """One of `ids` [k] (ascending) with weights `probs` [k] (not negative, any positive sum), for absolute `position`.

        Positions must rise from call to call: a second choice at one position would be the same random draw again, and raises.
        """

    @abstractmethod
    def flip(self, probability: float) -> bool:
        """True with this probability: `u < probability`, u in [0, 1), so that 0 never passes."""

    @abstractmethod
    def skip(self, position: int) -> None:
        """Mark `position` as used by a choice among one token, which needs no random draw."""


class RisingPositions:
    """Keeps the rule that each position is chosen at once, in rising order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1

    def use(self, position: int) -> None:
        if position <= self.last:
            raise SpecdecError(
                f"a token was chosen at position {position} after one at {self.last}: keyed noise would repeat the random draw"
            )
        self.last = position


def _target_key(seed: int) -> int:
    """The key of the noise of a request's target draws."""
    return mix(seed, 1)


def perturbed(seed: int, ids: Tensor, probs: Tensor, position: int) -> Tensor:
    """[k] log p + G of each of `ids`: a seeded request draws the token whose value is the largest. seed: the request's key."""
    return _perturbed(_target_key(seed), ids, probs, position)


def _perturbed(key: int, ids: Tensor, probs: Tensor, position: int) -> Tensor:
    return torch.log(probs.to(torch.float64)) + gumbels(key, position, ids)


class SeededTargetRng(TargetRng):
    """Choices keyed by (seed, position, token): plain decoding with the same seed draws the same tokens."""

    def __init__(self, seed: int) -> None:
        self._seed = _target_key(seed)
        self._flips = 0
        self._positions = RisingPositions()

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        self._positions.use(position)
        return int(ids[_perturbed(self._seed, ids, probs, position).argmax()])

    def flip(self, probability: float) -> bool:
        self._flips += 1
        return (mix(self._seed, 2, self._flips) >> 11) * 2.0**-53 < probability

    def skip(self, position: int) -> None:
        self._positions.use(position)


class SeededDraftRng(DraftRng):
    """One generator a sequence, so that its drafts do not depend on its batch mates."""

    def __init__(self, seed: int) -> None:
        self._seed = mix(seed, 3)
        self._noise_key = _target_key(seed)
        self._flips = 0
        self._generator = torch.Generator().manual_seed(signed(self._seed))

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        row = probs.detach().to("cpu", torch.float64)
        if replacement:
            return torch.multinomial(row, count, replacement=True, generator=self._generator).tolist()
        possible = row.nonzero()[:, 0]
        weights = row[possible]
        race = weights / torch.empty_like(weights).exponential_(generator=self._generator)
        return possible[race.topk(min(count, len(possible))).indices].tolist()

    def flip(self, probability: float) -> bool:
        self._flips += 1
        return (mix(self._seed, 4, self._flips) >> 11) * 2.0**-53 < probability

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        ids = probs.detach().nonzero()[:, 0]
        keys = _perturbed(self._noise_key, ids, probs.detach()[ids], position)
        return ids[keys.topk(min(count, len(ids))).indices].tolist()


@dataclass(frozen=True, slots=True)
class RequestRng:
    """The two streams of one sequence."""

    draft: DraftRng
    target: TargetRng


def seeded(seed: int) -> RequestRng:
    """The production RNG of the request with this key."""
    return RequestRng(SeededDraftRng(seed), SeededTargetRng(seed))


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Torch's global random numbers from `seed` on, for code of others that draws from nothing else; put back afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
