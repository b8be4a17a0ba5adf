"""Random draws that watch the code which makes them: whether it is a function of them, and how many outcomes it has."""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from specdec.errors import NumericsError, SpecdecError
from specdec.sampling.enumeration import outcomes
from specdec.sampling.keyed_noise import mix
from specdec.sampling.rng import DraftRng, RequestRng, TargetRng

REPEATS = 8
"""Of the first leaf: a hidden draw among four equal tokens stays hidden in one of 65,536 proofs."""

R = TypeVar("R", bound=Hashable)
A = TypeVar("A")

Question = tuple[Any, ...]
"""One random draw: the method and its arguments, as plain numbers."""


class NotAFunctionOfItsDraws(SpecdecError):
    """Code that does something else when all its random draws come out as before: it draws elsewhere, or remembers."""


class OutOfTime(SpecdecError):
    """An enumeration that would take too long."""


@dataclass(slots=True)
class Ledger:
    """The questions and answers of one leaf, held against those of the leaf before: same answers, same questions.

    earlier: None for the first leaf. follows: whether all answers so far are those of the earlier leaf.
    """

    earlier: list[tuple[Question, Any]] | None = None
    now: list[tuple[Question, Any]] = field(default_factory=list)
    follows: bool = True

    def ask(self, question: Question, answer: Callable[[], A]) -> A:
        """The answer, written down. Raises NotAFunctionOfItsDraws where the earlier leaf was asked something else here."""
        number = len(self.now)
        _check_weights(question)
        expected = None if self.earlier is None or number >= len(self.earlier) else self.earlier[number][0]
        if self.earlier is not None and self.follows and expected != question:
            raise NotAFunctionOfItsDraws(f"random draw {number + 1} is another one when all draws before it came out the same")
        given = answer()
        if self.earlier is not None and self.follows and self.earlier[number][1] != given:
            self.follows = False
        self.now.append((question, given))
        return given

    def recall(self) -> Any:
        """What the earlier leaf answered at this place; None beyond its end."""
        number = len(self.now)
        return self.earlier[number][1] if self.earlier is not None and number < len(self.earlier) else None

    def close(self) -> None:
        """Raise NotAFunctionOfItsDraws for a leaf that ends early, or where another leaf went on."""
        if self.earlier is not None and self.follows:
            raise NotAFunctionOfItsDraws("there are fewer random draws when those before came out the same")


def _check_weights(question: Question) -> None:
    """Raise NumericsError for a draw with a NaN, infinite or negative weight: NaN is unlike itself, and draws nothing."""
    method, *arguments = question
    if method == "skip":
        return
    weights = arguments[1] if method == "choose" else arguments[0]
    for weight in weights if isinstance(weights, tuple) else (weights,):
        if not 0 <= weight < math.inf:
            raise NumericsError(f"a random draw was given the weight {weight}")


class WatchedDraft(DraftRng):
    """Draft draws that are recorded; without `inner`, those of the earlier leaf again."""

    def __init__(self, inner: DraftRng | None, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        inner = self._inner
        return list(
            self._ledger.ask(
                ("draw", tuple(probs.tolist()), count, replacement),
                lambda: self._ledger.recall() if inner is None else tuple(inner.draw(probs, count, replacement=replacement)),
            )
        )

    def flip(self, probability: float) -> bool:
        inner = self._inner
        return self._ledger.ask(
            ("draft flip", probability), lambda: self._ledger.recall() if inner is None else inner.flip(probability)
        )

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        inner = self._inner
        return list(
            self._ledger.ask(
                ("couple", tuple(probs.tolist()), count, position),
                lambda: self._ledger.recall() if inner is None else tuple(inner.couple(probs, count, position)),
            )
        )


class WatchedTarget(TargetRng):
    """Target draws that are recorded; without `inner`, those of the earlier leaf again."""

    def __init__(self, inner: TargetRng | None, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        inner = self._inner
        return self._ledger.ask(
            ("choose", tuple(ids.tolist()), tuple(probs.tolist()), position),
            lambda: self._ledger.recall() if inner is None else inner.choose(ids, probs, position),
        )

    def flip(self, probability: float) -> bool:
        inner = self._inner
        return self._ledger.ask(
            ("flip", probability), lambda: self._ledger.recall() if inner is None else inner.flip(probability)
        )

    def skip(self, position: int) -> None:
        inner = self._inner
        self._ledger.ask(("skip", position), lambda: None if inner is None else inner.skip(position))


def distribution_of(run: Callable[[RequestRng], R], *, deadline: float | None = None, repeats: int = REPEATS) -> dict[R, float]:
    """The exact distribution of `run`, which must be a function of its random draws.

    deadline: on the clock of `time.monotonic`. repeats: how often the first leaf is run again. Raises NotAFunctionOfItsDraws
    (each leaf is also held against the one before it), OutOfTime, and whatever `run` raises.
    """
    ledger = Ledger()

    def watched(rng: RequestRng) -> R:
        nonlocal ledger
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime("the time for this enumeration is over")
        first = not ledger.now
        ledger = Ledger(earlier=None if first else ledger.now)
        result = run(RequestRng(WatchedDraft(rng.draft, ledger), WatchedTarget(rng.target, ledger)))
        ledger.close()
        if first:
            _repeat(run, ledger, result, repeats)
        return result

    try:
        return outcomes(watched)
    except NumericsError as error:
        if "total mass" in str(error):
            raise NotAFunctionOfItsDraws(str(error)) from error
        raise


def _repeat(run: Callable[[RequestRng], R], ledger: Ledger, result: R, times: int) -> None:
    for _ in range(times):
        again = Ledger(earlier=ledger.now)
        repeated = run(RequestRng(WatchedDraft(None, again), WatchedTarget(None, again)))
        if repeated != result or len(again.now) != len(ledger.now):
            raise NotAFunctionOfItsDraws("the result is another one when all random draws come out the same")


class Probe:
    """A walk to one leaf that takes every possible branch alike. leaves: an unbiased guess of how many there are.

    *Source: Knuth 1975, estimating the efficiency of backtrack programs.*
    """

    def __init__(self, number: int) -> None:
        self.leaves = 1.0
        self._number = number
        self._choices = 0

    @property
    def rng(self) -> RequestRng:
        """RequestRng that walk on from here."""
        return RequestRng(_ProbeDraft(self), _ProbeTarget(self))

    def branch(self, weights: list[float]) -> int:
        """One of the possible branches."""
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        if not possible:
            raise NumericsError("a choice has no possible outcome")
        self.leaves *= len(possible)
        self._choices += 1
        return possible[mix(self._number, self._choices) % len(possible)]


class _ProbeDraft(DraftRng):
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        weights, drawn = probs.tolist(), list[int]()
        while len(drawn) < count and any(weight > 0 for weight in weights):
            drawn.append(self._probe.branch(weights))
            if not replacement:
                weights[drawn[-1]] = 0.0
        return drawn

    def flip(self, probability: float) -> bool:
        return self._probe.branch([1 - probability, probability]) == 1

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        return self.draw(probs, count, replacement=False)


class _ProbeTarget(TargetRng):
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        return int(ids[self._probe.branch(probs.tolist())])

    def flip(self, probability: float) -> bool:
        return self._probe.branch([1 - probability, probability]) == 1

    def skip(self, position: int) -> None:
        """No branch."""
