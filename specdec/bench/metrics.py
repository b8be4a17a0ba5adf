"""What results come to: one summary for each contender, setting and category."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from specdec.bench.bootstrap import Estimate, median_interval, ratio_interval
from specdec.bench.measurements import PLAIN, Answer, Cell, Counts, Measurement, Results

MIXED = "mixed"
"""The category of questions of several categories that were answered together."""


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """tau and acceptance, as `interfaces/results` defines them; lists by depth or rank, first that of depth 1 or rank 0.

    acceptance_by_depth: accepted / tested positions; n-alpha of the EAGLE paper where drafts are chains.
    acceptance_by_rank: accepted / nodes at which a child of this rank was offered, earlier ranks accepted or not.
    """

    tau: float | None
    draft_acceptance_rate: float | None
    acceptance_by_depth: tuple[float, ...]
    tested_by_depth: tuple[int, ...]
    acceptance_by_rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """One contender in one setting; category None: all questions.

    speedup: median over groups of questions of plain decoding's seconds per token over this contender's, pair by pair.
    speedup_of_totals: the same from summed seconds and tokens. versus: the median against other contenders, by name.
    phases: shares of the wall time. num_different of num_compared answers have other ids than plain decoding's.
    """

    cell: Cell
    contender: str
    category: str | None
    num_groups: int
    num_answers: int
    num_tokens: int
    seconds: float
    speedup: Estimate | None
    speedup_of_totals: Estimate | None
    versus: Mapping[str, Estimate]
    tokens_per_second: float
    drafts: DraftFigures | None
    phases: Mapping[str, float]
    first_token_seconds: float | None
    peak_bytes: int | None
    num_compared: int
    num_different: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and tokens of a group of questions, over all its turns."""

    seconds: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


def category_of(measurement: Measurement) -> str:
    """The category of the answers, `mixed` for several."""
    names = {answer.category for answer in measurement.answers}
    return names.pop() if len(names) == 1 else MIXED


def categories(results: Results, cell: Cell) -> list[str]:
    """The categories of a cell, in the order of measuring."""
    return list(dict.fromkeys(category_of(m) for m in results.measurements if m.cell == cell))


def contenders(results: Results, cell: Cell) -> list[str]:
    """Those that were measured in the cell, in the order of the header."""
    there = {m.contender for m in results.measurements if m.cell == cell}
    return [name for name in results.header.contenders if name in there]


def summaries(results: Results, cell: Cell, *, category: str | None = None, versus: Sequence[str] = ()) -> list[Summary]:
    """All contenders of a cell."""
    chosen = [m for m in results.measurements if m.cell == cell and (category is None or category_of(m) == category)]
    by_name = {name: [m for m in chosen if m.contender == name] for name in contenders(results, cell)}
    plain = by_name.get(PLAIN, [])
    return [
        _summary(name, own, plain, {other: by_name[other] for other in versus if by_name.get(other)}, category, results)
        for name, own in by_name.items()
        if own
    ]


def costs(measurements: Iterable[Measurement]) -> dict[int, dict[int, Cost]]:
    """By group and turn."""
    found: dict[int, dict[int, Cost]] = {}
    for m in measurements:
        found.setdefault(m.group, {})[m.turn] = Cost(m.seconds, m.num_tokens)
    return found


def paired(ours: Iterable[Measurement], theirs: Iterable[Measurement]) -> list[tuple[Cost, Cost]]:
    """The costs of each group over the turns that both have answered."""
    first, second = costs(ours), costs(theirs)
    pairs = []
    for group in first.keys() & second.keys():
        turns = sorted(first[group].keys() & second[group].keys())
        pair = (_sum(first[group][t] for t in turns), _sum(second[group][t] for t in turns))
        if all(cost.tokens for cost in pair):
            pairs.append((group, pair))
    return [pair for _, pair in sorted(pairs, key=lambda item: item[0])]


def _sum(parts: Iterable[Cost]) -> Cost:
    listed = list(parts)
    return Cost(sum(cost.seconds for cost in listed), sum(cost.tokens for cost in listed))


def speedup(ours: Iterable[Measurement], theirs: Iterable[Measurement]) -> Estimate | None:
    """How many times faster `ours` gives a token, median over groups; None without a pair."""
    pairs = paired(ours, theirs)
    return median_interval([their.per_token / our.per_token for our, their in pairs]) if pairs else None


def speedup_of_totals(ours: Iterable[Measurement], theirs: Iterable[Measurement]) -> Estimate | None:
    """From summed seconds, each answer's scaled to its group's tokens of `ours`, so that lengths do not matter."""
    pairs = paired(ours, theirs)
    if not pairs:
        return None
    return ratio_interval([their.per_token * our.tokens for our, their in pairs], [our.seconds for our, _ in pairs])


def _summary(
    name: str,
    own: list[Measurement],
    plain: list[Measurement],
    versus: Mapping[str, list[Measurement]],
    category: str | None,
    results: Results,
) -> Summary:
    seconds, tokens = sum(m.seconds for m in own), sum(m.num_tokens for m in own)
    answers = [answer for m in own for answer in m.answers]
    firsts = [m.first_token_seconds for m in own if m.first_token_seconds is not None]
    peaks = [m.peak_bytes for m in own if m.peak_bytes is not None]
    compared, different = _compared(own, plain) if _same_ids_expected(name, own[0].cell, results) else (0, 0)
    return Summary(
        cell=own[0].cell,
        contender=name,
        category=category,
        num_groups=len({m.group for m in own}),
        num_answers=len(answers),
        num_tokens=tokens,
        seconds=seconds,
        speedup=speedup(own, plain),
        speedup_of_totals=speedup_of_totals(own, plain),
        versus={other: found for other, theirs in versus.items() if (found := speedup(own, theirs)) is not None},
        tokens_per_second=tokens / seconds,
        drafts=draft_figures([answer.counts for answer in answers if answer.counts is not None]),
        phases=_phases(own),
        first_token_seconds=median(firsts) if firsts else None,
        peak_bytes=max(peaks, default=None),
        num_compared=compared,
        num_different=different,
    )


def draft_figures(counts: Sequence[Counts]) -> DraftFigures | None:
    """Acceptance over several answers; None where nothing was counted."""
    if not counts:
        return None
    forwards, drafted = sum(c.forwards for c in counts), sum(c.drafted for c in counts)
    tested, offered = (_added([getattr(c, name) for c in counts]) for name in ("tested_at", "offered_at_rank"))
    taken, chosen = (_added([getattr(c, name) for c in counts]) for name in ("accepted_at", "accepted_at_rank"))
    return DraftFigures(
        tau=sum(c.committed for c in counts) / forwards if forwards else None,
        draft_acceptance_rate=sum(c.accepted for c in counts) / drafted if drafted else None,
        acceptance_by_depth=tuple(a / max(t, 1) for a, t in zip(taken, tested, strict=True)),
        tested_by_depth=tuple(tested),
        acceptance_by_rank=tuple(a / max(t, 1) for a, t in zip(chosen, offered, strict=True)),
    )


def _added(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(row[place] for row in rows if place < len(row)) for place in range(max(map(len, rows), default=0))]


def _phases(own: Sequence[Measurement]) -> dict[str, float]:
    told = [m for m in own if m.phases]
    total = sum(m.seconds for m in told)
    names = list(dict.fromkeys(phase for m in told for phase in m.phases))
    return {name: sum(m.phases.get(name, 0.0) for m in told) / total for name in names}


def _same_ids_expected(name: str, cell: Cell, results: Results) -> bool:
    """Of what is lossless: at temperature 0, and above for `match`, whose draws are plain decoding's."""
    if results.header.contenders[name].get("guarantee") == "lossy":
        return False
    if not cell.temperature:
        return True
    spec = results.header.contenders[name].get("spec")
    return spec is not None and spec.get("verifier", {}).get("use") == "match"


def _compared(own: Iterable[Measurement], plain: Iterable[Measurement]) -> tuple[int, int]:
    known = {_place(m, answer): answer.tokens for m in plain for answer in m.answers}
    pairs = [(known[place], a.tokens) for m in own for a in m.answers if (place := _place(m, a)) in known]
    return len(pairs), sum(ours != theirs for ours, theirs in pairs)


def _place(measurement: Measurement, answer: Answer) -> tuple[Cell, str, int]:
    return measurement.cell, answer.question, answer.turn
