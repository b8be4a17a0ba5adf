"""Comparisons of two files as Markdown."""

from collections.abc import Iterator, Sequence

from specdec.bench.compare import FileComparison, Pair, SpecBenchRow
from specdec.bench.measurements import Cell
from specdec.bench.table import estimate_words, markdown_table, number_words
from specdec.files.text_escapes import markdown_text


def comparison_lines(found: FileComparison) -> Iterator[str]:
    """A table for each setting, then what else differs."""
    for cell in dict.fromkeys(pair.cell for pair in found.pairs):
        yield from _cell_lines(cell, [pair for pair in found.pairs if pair.cell == cell])
    yield "What else differs:" if found.notes else "Nothing else differs: versions, machine and specs are the same."
    yield from (f"  {note}" for note in found.notes)


def _cell_lines(cell: Cell, pairs: Sequence[Pair]) -> Iterator[str]:
    heads = ["", "second over first", "tokens/s", "speed-up, first", "speed-up, second", "overlap", "tau", "ids differ"]
    yield from (markdown_text(cell.words), "", markdown_table(heads, [_row(pair) for pair in pairs]), "")


def _row(pair: Pair) -> list[str]:
    first, second = pair.before, pair.after
    taus = [None if s.drafts is None else s.drafts.tau for s in (first, second)]
    return [
        pair.contender,
        estimate_words(pair.faster),
        f"{first.tokens_per_second:.1f} → {second.tokens_per_second:.1f}",
        estimate_words(first.speedup),
        estimate_words(second.speedup),
        {None: "–", True: "yes", False: "NO"}[pair.overlap],
        " → ".join(map(number_words, taus)),
        f"{pair.num_different} of {pair.num_compared}",
    ]


def answers_lines(rows: Sequence[SpecBenchRow]) -> Iterator[str]:
    """A table by category."""
    heads = ["category", "questions", "second over first", "mean accepted, first", "second"]
    cells = [
        [
            row.category,
            str(row.num_questions),
            estimate_words(row.faster),
            number_words(row.tau_before),
            number_words(row.tau_after),
        ]
        for row in rows
    ]
    yield markdown_table(heads, cells)
