"""Two result files side by side: is it the same set-up, what differs in where they ran, and who became faster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.bench.bootstrap import Estimate, median_interval
from specdec.bench.measurements import Cell, Results
from specdec.bench.metrics import Summary, speedup, summaries
from specdec.bench.results import differences
from specdec.bench.spec_bench import SpecBenchAnswer
from specdec.errors import SpecError

SETUP = (
    "prompts",
    "selection",
    "settings.max_new_tokens",
    "settings.top_k",
    "settings.top_p",
    "settings.seed",
    "settings.chat",
)
"""What must be the same for two runs to be comparable, as keys of a header's plan."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One contender in one setting of both files. faster: how many times `after` gives a token faster, pair by pair.

    overlap: whether the intervals of both speed-ups do; None where one has none. num_different: answers with other ids.
    """

    cell: Cell
    contender: str
    before: Summary
    after: Summary
    faster: Estimate | None
    overlap: bool | None
    num_compared: int
    num_different: int


@dataclass(frozen=True, slots=True)
class FileComparison:
    """notes: what differs in provenance, specs and contenders, one line each."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


def compare_results(before: Results, after: Results) -> FileComparison:
    """Raises SpecError where prompts or settings differ, or where the files have nothing in common."""
    if found := _setup_differences(before, after):
        raise SpecError("these results are of different set-ups, and not to be compared:\n  " + "\n  ".join(found))
    cells = [cell for cell in before.cells if cell in after.cells]
    pairs = [pair for cell in cells for pair in _pairs(before, after, cell)]
    if not pairs:
        raise SpecError("these results have no contender in a common setting (dtype, temperature, batch size, queue)")
    return FileComparison(tuple(pairs), tuple(_notes(before, after)))


def _setup_differences(before: Results, after: Results) -> list[str]:
    return [
        line for key in SETUP for line in differences(_value(before.header.plan, key), _value(after.header.plan, key), at=key)
    ]


def _value(plan: Mapping[str, Any], key: str) -> Any:
    value: Any = plan
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _pairs(before: Results, after: Results, cell: Cell) -> list[Pair]:
    first, second = ({s.contender: s for s in summaries(results, cell)} for results in (before, after))
    return [_pair(before, after, first[name], second[name]) for name in first if name in second]


def _pair(before: Results, after: Results, first: Summary, second: Summary) -> Pair:
    there, here = (
        [m for m in results.measurements if m.cell == first.cell and m.contender == first.contender]
        for results in (before, after)
    )
    known = {(a.question, a.turn): a.tokens for m in there for a in m.answers}
    both = [(known[a.question, a.turn], a.tokens) for m in here for a in m.answers if (a.question, a.turn) in known]
    return Pair(
        cell=first.cell,
        contender=first.contender,
        before=first,
        after=second,
        faster=speedup(here, there),
        overlap=overlap(first.speedup, second.speedup),
        num_compared=len(both),
        num_different=sum(a != b for a, b in both),
    )


def overlap(first: Estimate | None, second: Estimate | None) -> bool | None:
    """Whether two intervals have a point in common; None where one is missing."""
    if first is None or second is None or None in (first.low, first.high, second.low, second.high):
        return None
    return max(first.low or 0.0, second.low or 0.0) <= min(first.high or 0.0, second.high or 0.0)


def _notes(before: Results, after: Results) -> list[str]:
    origin, other = ({k: v for k, v in r.header.provenance.items() if k != "started"} for r in (before, after))
    notes = differences(origin, other)
    there, here = before.header.contenders, after.header.contenders
    for name in [*there, *(name for name in here if name not in there)]:
        if name in there and name in here:
            notes += differences(there[name], here[name], at=name)
        else:
            notes.append(f"{name}: only in the {'first' if name in there else 'second'} file")
    for which, results in (("first", before), ("second", after)):
        short = [(cell.words, words) for cell in results.cells if (words := results.shortfall(cell)) is not None]
        notes += [f"{cell}: the {which} file has {words}" for cell, words in short]
    return notes


@dataclass(frozen=True, slots=True)
class SpecBenchRow:
    """One category of two answer files of Spec-Bench: medians over questions, and mean tokens a target forward."""

    category: str
    num_questions: int
    faster: Estimate
    tau_before: float | None
    tau_after: float | None


def compare_answers(before: Sequence[SpecBenchAnswer], after: Sequence[SpecBenchAnswer]) -> list[SpecBenchRow]:
    """By category, then 'overall'. Raises SpecError without a common question that both answered with a token."""
    known = {(a.category, a.question_id): a for a in before}
    pairs = [(known[key], b) for b in after if (key := (b.category, b.question_id)) in known]
    pairs = [pair for pair in pairs if all(sum(a.new_tokens) and sum(a.wall_time) for a in pair)]
    if not pairs:
        raise SpecError("these answer files have no question in common")
    names = list(dict.fromkeys(a.category for a, _ in pairs))
    groups = [(name, [pair for pair in pairs if pair[0].category == name]) for name in names]
    return [_answers_row(name, found) for name, found in [*groups, ("overall", pairs)]]


def _answers_row(name: str, pairs: Sequence[tuple[SpecBenchAnswer, SpecBenchAnswer]]) -> SpecBenchRow:
    ratios = [_seconds_per_token(a) / _seconds_per_token(b) for a, b in pairs]
    taus = [_mean([n for pair in pairs for n in pair[side].accept_lengths]) for side in (0, 1)]
    return SpecBenchRow(name, len(pairs), median_interval(ratios), taus[0], taus[1])


def _seconds_per_token(answer: SpecBenchAnswer) -> float:
    return sum(answer.wall_time) / sum(answer.new_tokens)


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
