"""What a benchmark measures: settings, answers, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLAIN = "plain"
"""The contender that speed-ups are against: the target without a drafter."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting. dtype: None where it is the strategy's own. queue: questions for each place of a batch."""

    dtype: str | None
    temperature: float
    batch_size: int
    queue: int = 1

    @property
    def words(self) -> str:
        """For headings."""
        dtype = "" if self.dtype is None else f"{self.dtype}, "
        queue = "" if self.queue == 1 else f" and a queue of {self.queue}"
        return f"{dtype}T = {self.temperature:g}, batch {self.batch_size}{queue}"


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the drafts of one answer.

    forwards: target forwards after the first; committed: tokens that they gave. tested_at, accepted_at: by depth.
    offered_at_rank, accepted_at_rank: by place among the siblings of a tested node, in draw order.
    steps: tokens given by each of the forwards.
    """

    forwards: int
    committed: int
    drafted: int = 0
    accepted: int = 0
    tested_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    offered_at_rank: tuple[int, ...] = ()
    accepted_at_rank: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. tokens: emitted ids, a final stop token included; text: None for a target without a tokenizer."""

    question: str
    turn: int
    category: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str | None
    counts: Counts | None = None
    number: int | str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One batch of answers by one contender.

    group: the questions that are answered together, over all their turns; results are paired by it.
    seconds: wall time, prefill included, prompt ids given. first_token_seconds: None where it could not be measured.
    phases: seconds of 'prefill', the decode step's phases and 'rest'; empty for contenders that do not tell.
    peak_bytes: the largest memory of the process (on a CPU) or of the device during it, models included.
    """

    cell: Cell
    contender: str
    group: int
    turn: int
    seconds: float
    first_token_seconds: float | None
    answers: tuple[Answer, ...]
    phases: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None

    @property
    def num_tokens(self) -> int:
        """Emitted tokens of all answers."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def key(self) -> tuple[Cell, int, int, str]:
        """What is measured once in a file."""
        return self.cell, self.group, self.turn, self.contender


@dataclass(frozen=True, slots=True)
class Header:
    """What was set up: `plan` (settings and prompts), `contenders` (resolved spec or settings of each), and where it ran."""

    plan: Mapping[str, Any]
    contenders: Mapping[str, Any]
    provenance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """A whole file. resumed: the provenance of each later sitting."""

    header: Header
    measurements: tuple[Measurement, ...]
    resumed: tuple[Mapping[str, Any], ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """In the order of measuring."""
        return list(dict.fromkeys(m.cell for m in self.measurements))

    def shortfall(self, cell: Cell) -> str | None:
        """In words, how many questions have no answer of some contender; None where all have, or how many is not known."""
        planned = sum(file["num_questions"] for file in self.header.plan.get("prompts", ()))
        names = {m.contender for m in self.measurements if m.cell == cell}
        asked = {
            name: {a.question for m in self.measurements if (m.cell, m.contender) == (cell, name) for a in m.answers}
            for name in names
        }
        common = len(set.intersection(*asked.values())) if asked else 0
        if common >= planned:
            return None
        return f"only {common} of {planned} questions: the benchmark was stopped, or the others did not fit into the context"
