"""Tokens held against the distribution that they should follow, whatever decoder they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from specdec.losslessness.levels import Curve
from specdec.losslessness.sampled.eprocess import EProcess
from specdec.losslessness.sampled.power import bound_along, bound_anywhere, visible_along, visible_anywhere
from specdec.losslessness.sampled.statistics import (
    FALSE_ALARM,
    ChiSquare,
    Floats,
    Test,
    chi_square,
    focused,
    holm,
    pit,
    uniformity,
)


class Leaning(StrEnum):
    """Where a fault is expected to lean, in words that end "towards ..."; its name goes into the names of figures."""

    DRAFTER = "the drafter"
    LIKELIER = "the likelier tokens"
    TARGET = "the target's distribution"

    @property
    def key(self) -> str:
        return f"towards_{self.name.lower()}"


ALTERNATIVES = ("the drafter's distribution", "what the drafter lacks", "tokens that the drafter prefers", "the other tokens")

SAME = 0.01
"""Total variation of p and q below which q points nowhere, and a sharper p takes its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Bets:
    """What is fixed before a token is drawn, by token of p's support.

    favoured: a set, whose probability is `mass`. order: the PIT's. ratios: [support, alternatives], a / p.
    """

    favoured: np.ndarray
    mass: float
    order: Floats
    ratios: Floats


def bets(p: Floats, q: Floats | None) -> Bets:
    """Bets on the side of the drafter. p: [support], positive, sum 1; q: what the drafter gives these tokens, None: unknown.

    Where q is unknown, or is p, a sharper p takes its place: most faults lean to the likelier tokens, or away from them.
    """
    if q is None or np.abs(p - q).sum() + (1 - q.sum()) < 2 * SAME:
        q = p**2 / float((p**2).sum())
    favoured = q > p
    mass = float(p[favoured].sum())
    rest = np.maximum(p - q, 0.0)
    left = float(rest.sum())
    inside = favoured / mass if mass > 0 else np.ones_like(p)
    outside = ~favoured / (1 - mass) if 0 < mass < 1 else np.ones_like(p)
    residual = rest / left / p if left > 1e-12 else np.ones_like(p)
    return Bets(favoured, mass, q / p, np.stack([q / p, residual, inside, outside], 1))


@dataclass(slots=True)
class Drawn:
    """Tokens that were drawn one after another, and what was bet on each before."""

    _hits: list[float] = field(default_factory=list)
    _masses: list[float] = field(default_factory=list)
    _uniforms: list[float] = field(default_factory=list)
    _ratios: list[Floats] = field(default_factory=list)

    def add(self, p: Floats, q: Floats | None, slot: int, uniform: float) -> None:
        """The token at `slot`. p, q: as `bets` takes them. uniform: a number of its own, for the randomised PIT."""
        bet = bets(p, q)
        self._hits.append(float(bet.favoured[slot]))
        self._masses.append(bet.mass)
        self._uniforms.append(pit(p, bet.order, slot, uniform))
        self._ratios.append(bet.ratios[slot])

    def hand_in(self, evidence: "Evidence") -> None:
        """Add them to `evidence`."""
        if self._hits:
            hits, masses, values = (np.array(numbers) for numbers in (self._hits, self._masses, self._uniforms))
            evidence.add(hits, masses, values, np.stack(self._ratios))


@dataclass(slots=True)
class Evidence:
    """What a run has shown so far. counts: by context that was visited often, tokens seen; distributions: their probabilities.

    leaning: where its bets lie. rest: whether the last column of `counts` stands for many tokens. impossible: tokens that the
    target can never emit.
    """

    name: str
    leaning: Leaning = Leaning.DRAFTER
    rest: bool = False
    wealth: EProcess = field(default_factory=lambda: EProcess(ALTERNATIVES))
    uniforms: list[Floats] = field(default_factory=list)
    tokens: int = 0
    hits: float = 0.0
    expected: float = 0.0
    variance: float = 0.0
    impossible: int = 0
    counts: tuple[Floats, Floats] | None = None
    distributions: Floats | None = None
    joint: ChiSquare = field(default_factory=ChiSquare)

    def add(self, hits: Floats, masses: Floats, uniforms: Floats, ratios: Floats) -> None:
        """Tokens in the order in which they were drawn: [tokens], [tokens], [tokens or fewer], [tokens, alternatives]."""
        self.tokens += len(hits)
        self.hits += float(hits.sum())
        self.expected += float(masses.sum())
        self.variance += float((masses * (1 - masses)).sum())
        if len(uniforms):
            self.uniforms.append(uniforms)
        self.wealth.add(ratios)

    @property
    def chi(self) -> ChiSquare:
        """Over all contexts."""
        if self.counts is None or self.distributions is None:
            return ChiSquare()
        both = self.counts[0] + self.counts[1]
        return sum(
            (
                chi_square(seen, distribution, rest=self.rest)
                for seen, distribution in zip(both, self.distributions, strict=True)
            ),
            ChiSquare(),
        )

    @property
    def learned(self) -> tuple[float, float, int]:
        """(shift, its standard error, tokens) along the direction that the first half of the tokens shows, in the second half.

        An unbiased estimate of a lower limit of the mean total variation.
        """
        if self.counts is None or self.distributions is None:
            return 0.0, 1.0, 0
        first, second = self.counts
        totals = second.sum(1)
        chosen = first / np.maximum(first.sum(1, keepdims=True), 1) > self.distributions
        masses = (self.distributions * chosen).sum(1)
        hits, count = float((second * chosen).sum()), float(totals.sum())
        if not count:
            return 0.0, 1.0, 0
        variance = float((totals * masses * (1 - masses)).sum())
        return (hits - float((totals * masses).sum())) / count, np.sqrt(variance) / count, int(count)

    def tests(self) -> list[Test]:
        """All that this run's tokens allow."""
        found = []
        if self.impossible:
            found.append(Test("impossible tokens", 0.0, self.tokens, float(self.impossible)))
        if self.tokens:
            z, p_value = focused(self.hits, self.expected, self.variance)
            found.append(Test(f"focused, towards {self.leaning}", p_value, self.tokens, z))
            found.append(Test("e-process", self.wealth.p_value, self.tokens, self.wealth.best))
        if self.uniforms:
            found += uniformity(np.concatenate(self.uniforms))
        chi = self.chi
        if chi.freedom:
            found.append(Test("chi-square, all contexts", chi.p_value, chi.samples, chi.statistic))
        shift, error, count = self.learned
        if count:
            z, p_value = focused(shift * count, 0.0, (error * count) ** 2)
            found.append(Test("learned direction", p_value, count, z))
        if self.joint.freedom:
            found.append(
                Test("joint distribution of several tokens", self.joint.p_value, self.joint.samples, self.joint.statistic)
            )
        return [Test(f"{self.name}: {t.name}", t.p_value, t.samples, t.statistic) for t in found]

    def distances(self, num_tests: int) -> Mapping[str, float]:
        """Total variations: what is left possible at 95 %, and the smallest that could be seen with power 0.9.

        Those in any direction count what may hide within groups of tokens that were counted together.
        """
        if not self.tokens:
            return {}
        alpha = FALSE_ALARM / max(num_tests, 1)
        error = np.sqrt(max(self.variance, 1e-12)) / self.tokens
        found = {
            f"{self.leaning.key}_at_most": bound_along((self.hits - self.expected) / self.tokens, error),
            f"{self.leaning.key}_visible": visible_along(error, alpha=alpha),
        }
        chi = self.chi
        if chi.freedom:
            bound = bound_anywhere(chi.statistic, chi.freedom, chi.samples)
            visible = visible_anywhere(chi.freedom, chi.samples, alpha=alpha)
            found["anywhere_at_most"] = min(1.0, bound + chi.blind)
            found["anywhere_visible"] = min(1.0, visible + chi.blind)
            found["counted_together"] = chi.blind
        shift, _, count = self.learned
        if count:
            found["estimated_at_least"] = max(0.0, shift)
        return {name: float(value) for name, value in found.items()}

    def curve(self) -> Curve:
        """The e-process."""
        return self.wealth.curve(self.name)


@dataclass(frozen=True, slots=True)
class Decision:
    """All tests of a run together. refuted_by: those whose adjusted p-value is below the false-alarm rate."""

    tests: tuple[Test, ...]
    adjusted: tuple[float, ...]

    @property
    def refuted_by(self) -> tuple[Test, ...]:
        return tuple(test for test, p in zip(self.tests, self.adjusted, strict=True) if p < FALSE_ALARM)

    @property
    def smallest(self) -> float:
        """The smallest adjusted p-value; 1 without a test."""
        return min(self.adjusted, default=1.0)


def decide(parts: list[Evidence]) -> Decision:
    """Holm over every test of every part."""
    tests = tuple(test for part in parts for test in part.tests())
    return Decision(tests, tuple(holm([test.p_value for test in tests])))
