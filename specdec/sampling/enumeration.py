"""Every outcome of a random procedure, by replaying its choices: the engine of the exact proofs."""

import math
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from specdec.errors import NumericsError, SpecdecError
from specdec.sampling.rng import DraftRng, RequestRng, RisingPositions, TargetRng

R = TypeVar("R", bound=Hashable)


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


Apart = Callable[[int], Collection[int]]
"""Position -> the tokens that make a difference there."""


class ReplayTargetRng(TargetRng):
    """Target draws that follow a script. apart: all other tokens of a choice are one outcome; None: each is one."""

    def __init__(self, script: _Script, apart: Apart | None = None) -> None:
        self._script = script
        self._apart = apart
        self._positions = RisingPositions()

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        self._positions.use(position)
        if self._apart is None:
            return int(ids[self._script.branch(probs.tolist())])
        wanted = torch.tensor(sorted(self._apart(position)), dtype=ids.dtype, device=ids.device)
        slots = torch.searchsorted(ids, wanted).clamp_max(len(ids) - 1)
        marked = slots[ids[slots] == wanted]
        others = probs.index_fill(0, marked, 0.0)
        outcome = self._script.branch([*probs[marked].tolist(), float(others.sum())])
        return int(ids[marked[outcome]]) if outcome < len(marked) else int(ids[others.argmax()])

    def flip(self, probability: float) -> bool:
        passing = min(1.0, max(0.0, probability)) if not math.isnan(probability) else math.nan
        return self._script.branch([1 - passing, passing]) == 1

    def skip(self, position: int) -> None:
        self._positions.use(position)


class ReplayDraftRng(DraftRng):
    """Draft draws that follow a script."""

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

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        """Every order that the noise can give, with its probability; that it is the target's noise too is not enumerated."""
        return self.draw(probs, count, replacement=False)


def outcomes(run: Callable[[RequestRng], R], *, limit: int = 5_000_000, apart: Apart | None = None) -> dict[R, float]:
    """The exact distribution of `run`: it is called once per leaf of its tree of choices; results map to their probability.

    apart: by position, the tokens by which results differ: the others of the target's choice are drawn as one.
    Raises SpecdecError beyond `limit` leaves, NumericsError when the masses do not sum to 1 within 1e-9.
    """
    distribution: dict[R, float] = {}
    prefix: list[int] | None = []
    leaves = 0
    while prefix is not None:
        script = _Script(prefix)
        result = run(RequestRng(ReplayDraftRng(script), ReplayTargetRng(script, apart)))
        distribution[result] = distribution.get(result, 0.0) + script.mass
        prefix = script.successor()
        leaves += 1
        if leaves > limit:
            raise SpecdecError(f"more than {limit} leaves: too large to enumerate; use fewer tokens, nodes or levels")
    total = math.fsum(distribution.values())
    if abs(total - 1) > 1e-9:
        raise NumericsError(f"the outcomes have a total mass of {total}, not 1")
    return distribution
