"""All randomness: seeded for production, replayed for exact proofs.

Builders get a `DraftChance` and verifiers a `TargetChance`: two streams, so that no coin ever serves both a proposal
and its verification. Nothing else in specdec may draw a random number.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from specdec.errors import NumericsError, SpecdecError
from specdec.noise import gumbels, mix, signed

R = TypeVar("R", bound=Hashable)


class DraftChance(ABC):
    """The coins of one sequence's draft."""

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


class TargetChance(ABC):
    """The coins of one sequence's verification."""

    @abstractmethod
    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        """One of `ids` [k] (ascending) with weights `probs` [k] (not negative, any positive sum), for absolute `position`.

        Positions must rise from call to call: a second choice at one position would be the same coin again, and raises.
        """

    @abstractmethod
    def flip(self, probability: float) -> bool:
        """True with this probability: `u < probability`, u in [0, 1), so that 0 never passes."""

    @abstractmethod
    def skip(self, position: int) -> None:
        """Mark `position` as used by a choice among one token, which needs no coin."""


class _Positions:
    """Keeps the rule that each position is chosen at once, in rising order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1

    def use(self, position: int) -> None:
        if position <= self.last:
            raise SpecdecError(
                f"a token was chosen at position {position} after one at {self.last}: keyed noise would repeat the same coin"
            )
        self.last = position


def _target_key(seed: int) -> int:
    """The key of the noise of a request's target draws."""
    return mix(seed, 1)


class SeededTargetChance(TargetChance):
    """Choices keyed by (seed, position, token): plain decoding with the same seed draws the same tokens."""

    def __init__(self, seed: int) -> None:
        self._seed = _target_key(seed)
        self._flips = 0
        self._positions = _Positions()

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        self._positions.use(position)
        keys = torch.log(probs.to(torch.float64)) + gumbels(self._seed, position, ids)
        return int(ids[keys.argmax()])

    def flip(self, probability: float) -> bool:
        self._flips += 1
        return (mix(self._seed, 2, self._flips) >> 11) * 2.0**-53 < probability

    def skip(self, position: int) -> None:
        self._positions.use(position)


class SeededDraftChance(DraftChance):
    """One generator a sequence, so that its drafts do not depend on its batch mates."""

    def __init__(self, seed: int) -> None:
        self._seed = mix(seed, 3)
        self._noise_key = _target_key(seed)
        self._flips = 0
        self._generator = torch.Generator().manual_seed(signed(self._seed))

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        weights = probs.detach().to("cpu", torch.float64)
        if replacement:
            return torch.multinomial(weights, count, replacement=True, generator=self._generator).tolist()
        race = weights / torch.empty_like(weights).exponential_(generator=self._generator)
        keys, ids = race.topk(min(count, race.shape[-1]))
        return ids[keys > 0].tolist()

    def flip(self, probability: float) -> bool:
        self._flips += 1
        return (mix(self._seed, 4, self._flips) >> 11) * 2.0**-53 < probability

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        ids = probs.detach().nonzero()[:, 0]
        keys = torch.log(probs.detach()[ids].to(torch.float64)) + gumbels(self._noise_key, position, ids)
        return ids[keys.topk(min(count, len(ids))).indices].tolist()


class _Script:
    """A path through the tree of choices: replays a prefix of branch indices, takes the first possible branch beyond it."""

    def __init__(self, prefix: list[int]) -> None:
        self.prefix = prefix
        self.taken: list[int] = []
        self.weights: list[list[float]] = []
        self.mass = 1.0

    def branch(self, weights: list[float]) -> int:
        for weight in weights:
            if not (math.isfinite(weight) and weight >= 0):
                raise NumericsError(f"a choice has the weight {weight}")
        total = math.fsum(weights)
        if total <= 0:
            raise NumericsError("a choice has no possible outcome")
        depth = len(self.taken)
        first = next(i for i, weight in enumerate(weights) if weight > 0)
        index = self.prefix[depth] if depth < len(self.prefix) else first
        self.taken.append(index)
        self.weights.append(weights)
        self.mass *= weights[index] / total
        return index

    def successor(self) -> list[int] | None:
        """The prefix of the next leaf in depth-first order, or None after the last."""
        for depth in range(len(self.taken) - 1, -1, -1):
            for index in range(self.taken[depth] + 1, len(self.weights[depth])):
                if self.weights[depth][index] > 0:
                    return [*self.taken[:depth], index]
        return None


class ReplayTargetChance(TargetChance):
    """Target coins that follow a script."""

    def __init__(self, script: _Script) -> None:
        self._script = script
        self._positions = _Positions()

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        self._positions.use(position)
        return int(ids[self._script.branch(probs.tolist())])

    def flip(self, probability: float) -> bool:
        passing = min(1.0, max(0.0, probability)) if not math.isnan(probability) else math.nan
        return self._script.branch([1 - passing, passing]) == 1

    def skip(self, position: int) -> None:
        self._positions.use(position)


class ReplayDraftChance(DraftChance):
    """Draft coins that follow a script."""

    def __init__(self, script: _Script) -> None:
        self._script = script

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        weights = probs.tolist()
        drawn: list[int] = []
        for _ in range(count):
            if not any(weight > 0 for weight in weights):
                break
            drawn.append(self._script.branch(weights))
            if not replacement:
                weights = [0.0 if token == drawn[-1] else weight for token, weight in enumerate(weights)]
        return drawn

    def flip(self, probability: float) -> bool:
        return self._script.branch([1 - probability, probability]) == 1

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:  # noqa: ARG002
        """Every order that the noise can give, with its law by itself; that it is the target's noise too is not enumerated."""
        return self.draw(probs, count, replacement=False)


@dataclass(frozen=True, slots=True)
class Coins:
    """The two streams of one sequence."""

    draft: DraftChance
    target: TargetChance


def seeded(seed: int) -> Coins:
    """Production coins of the request with this key."""
    return Coins(SeededDraftChance(seed), SeededTargetChance(seed))


def outcomes(run: Callable[[Coins], R], *, limit: int = 5_000_000) -> dict[R, float]:
    """The exact law of `run`: it is called once per leaf of its tree of choices; results map to their probability.

    Raises SpecdecError beyond `limit` leaves, NumericsError when the masses do not sum to 1 within 1e-9.
    """
    law: dict[R, float] = {}
    prefix: list[int] | None = []
    leaves = 0
    while prefix is not None:
        script = _Script(prefix)
        result = run(Coins(ReplayDraftChance(script), ReplayTargetChance(script)))
        law[result] = law.get(result, 0.0) + script.mass
        prefix = script.successor()
        leaves += 1
        if leaves > limit:
            raise SpecdecError(f"more than {limit} leaves: too large to enumerate; use fewer tokens, nodes or levels")
    total = math.fsum(law.values())
    if abs(total - 1) > 1e-9:
        raise NumericsError(f"the outcomes have a total mass of {total}, not 1")
    return law
