"""What a benchmark measures: settings, answers, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

from pydantic import Field

PLAIN = "plain"
"""The contender that speed-ups are against: the target without a drafter."""

Count: TypeAlias = Annotated[int, Field(ge=0)]
"""Ranges are for reading files: what is measured here is in them."""

Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting. dtype: None where it is the strategy's own. queue: questions for each place of a batch."""

    dtype: str | None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    batch_size: Annotated[int, Field(ge=1)]
    queue: Annotated[int, Field(ge=1)] = 1

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

    forwards: Count
    committed: Count
    drafted: Count = 0
    accepted: Count = 0
    tested_at: tuple[Count, ...] = ()
    accepted_at: tuple[Count, ...] = ()
    offered_at_rank: tuple[Count, ...] = ()
    accepted_at_rank: tuple[Count, ...] = ()
    steps: tuple[Count, ...] = ()

    def problem(self) -> str | None:
        """Which counts contradict each other, in words."""
        if self.accepted > self.drafted:
            return f"accepted {self.accepted} of {self.drafted} drafted"
        pairs = (("accepted_at", "tested_at"), ("accepted_at_rank", "offered_at_rank"))
        for name, of in pairs:
            some, all_ = getattr(self, name), getattr(self, of)
            if len(some) != len(all_) or any(a > b for a, b in zip(some, all_, strict=False)):
                return f"{name} is not as long as {of}, or larger somewhere"
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. tokens: emitted ids, a final stop token included; text: None for a target without a tokenizer."""

    question: str
    turn: Count
    category: str
    prompt_tokens: Count
    tokens: tuple[Count, ...]
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
    group: Count
    turn: Count
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    first_token_seconds: Seconds | None
    answers: tuple[Answer, ...]
    phases: Mapping[str, Seconds] = field(default_factory=dict)
    peak_bytes: Count | None = None

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
    contenders: Mapping[str, Mapping[str, Any]]
    provenance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """The target that was measured. asked: the dtype of its cells, None for its own; dtype, device: what it then had."""

    asked: str | None
    target: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Results:
    """A whole file. resumed: the provenance of each later sitting. loaded: none in files of before it was written down."""

    header: Header
    measurements: tuple[Measurement, ...]
    resumed: tuple[Mapping[str, Any], ...] = ()
    loaded: tuple[LoadedTarget, ...] = ()

    def named(self, cell: Cell) -> Cell:
        """The cell for headings and file names: with the target's own dtype where none was asked for, if that is known."""
        own = next((one.dtype for one in self.loaded if one.asked is None), None)
        return replace(cell, dtype=own) if cell.dtype is None else cell

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
