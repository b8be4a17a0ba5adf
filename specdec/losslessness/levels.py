"""What a level of proof may end in, and what it says; the levels are never summed up in one word."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Progress = Callable[[float, str], None]
"""(share of the level that is done, what is being done)."""


class Level(StrEnum):
    """The four proofs, in the order in which they are run."""

    EXACT = "exact"
    BITWISE = "bitwise"
    RUNTIME = "runtime"
    SAMPLED = "sampled"


SECONDS = {Level.EXACT: 20.0, Level.BITWISE: 60.0, Level.RUNTIME: 60.0, Level.SAMPLED: 120.0}
"""What each level gets unless a budget is given, which is then shared out in these proportions."""


class Outcome(StrEnum):
    """MEASURED: a lossy strategy, whose distance was measured and which claims nothing."""

    PROVED = "proved"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    MEASURED = "measured"


EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.PROVED: 0,
    Outcome.MEASURED: 0,
    Outcome.INCONCLUSIVE: 3,
    Outcome.REFUTED: 1,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """kind: 'wealth' (x: tokens, y: log10 of an e-process), 'p' (y: one p-value) or 'tv' (y: total variations, by label)."""

    kind: str
    name: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One level's verdict.

    words: the verdict in one line. lines: (title, words) of what it rests on. facts: the same and more, as plain data.
    curves: for the picture. seconds: what it took.
    """

    level: Level
    outcome: Outcome
    words: str
    lines: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "level": self.level.value,
            "outcome": self.outcome.value,
            "words": self.words,
            "lines": [list(line) for line in self.lines],
            "seconds": round(self.seconds, 2),
            **self.facts,
        }


def exit_code(results: Iterable[LevelResult]) -> int:
    """1 if any level is refuted, else 3 if any is inconclusive, else 0."""
    codes = {EXIT_CODES[result.outcome] for result in results}
    return 1 if 1 in codes else max(codes, default=0)
