"""Results as Markdown and CSV."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from specdec.bench.baselines import GENERATE
from specdec.bench.bootstrap import Estimate
from specdec.bench.measurements import PLAIN, Cell, Results
from specdec.bench.metrics import Summary, categories, summaries
from specdec.files.text_escapes import csv_cell, markdown_text

NONE = "–"

DEPTHS = 5
"""Levels of n-alpha that are shown: 0 to 4, as in the EAGLE paper."""

RANKS = 8

NOTES = """\
Speed-up: plain decoding's seconds per token over the contender's, on the same target, prompts, dtype, token cap and counting;
prefill is part of both times, a final stop token counts. Each group of questions gives one ratio (all its turns together);
the value is the median of the ratios, in brackets its bootstrap 95 % interval. tau: tokens a target forward after prefill.
first token: median wall time to it. memory: largest in use at once, all loaded models included. ids differ: answers with other
ids than plain decoding's, of those where the same are expected (temperature 0, or verifier match).
"""


def report(results: Results) -> str:
    """The whole report."""
    parts = ["# Benchmark", NOTES.rstrip(), *(_cell(results, cell) for cell in results.cells), _setup(results)]
    return "\n\n".join(parts) + "\n"


def main_table(results: Results, cell: Cell) -> str:
    """All contenders of one setting."""
    found = summaries(results, cell, versus=(GENERATE,))
    against = any(summary.versus for summary in found)
    heads = ["", "speed-up", *(["against transformers"] if against else []), "tokens/s", "tau", "drafts accepted"]
    rows = []
    for s in found:
        more = [estimate_words(s.versus.get(GENERATE))] if against else []
        differ = f"{s.num_different} of {s.num_compared}" if s.num_compared and s.contender != PLAIN else NONE
        rate = None if s.drafts is None else s.drafts.draft_acceptance_rate
        tau = None if s.drafts is None else s.drafts.tau
        rows.append(
            [
                _named(results, s.contender),
                "1" if s.contender == PLAIN else estimate_words(s.speedup),
                *more,
                f"{s.tokens_per_second:.1f}",
                number_words(tau),
                NONE if rate is None else f"{rate:.0%}",
                _milliseconds(s.first_token_seconds),
                NONE if s.peak_bytes is None else f"{s.peak_bytes / 2**30:.2f} GiB",
                differ,
            ]
        )
    return markdown_table([*heads, "first token", "memory", "ids differ"], rows)


def _cell(results: Results, cell: Cell) -> str:
    parts = [f"## {markdown_text(results.named(cell).words)}", _amount(results, cell), main_table(results, cell)]
    names = categories(results, cell)
    if len(names) > 1:
        parts += ["Speed-up by category (groups in brackets):", _category_table(results, cell, names)]
    found = summaries(results, cell)
    if any(s.phases for s in found):
        parts += ["Where the time goes:", _phase_table(results, found)]
    drafting = [s for s in found if s.drafts is not None and s.drafts.acceptance_by_depth]
    if drafting:
        depth = ["", *(f"{n}-alpha" for n in range(DEPTHS)), "shape"]
        parts += ["Acceptance by depth, accepted / tested (n-alpha of the EAGLE paper for chains):"]
        parts += [markdown_table(depth, [[*_alphas(s), _shape(results, s.contender)] for s in drafting])]
        ranks = min(RANKS, max(len(s.drafts.acceptance_by_rank) for s in drafting if s.drafts is not None))
        parts += ["Acceptance by child rank, accepted / offered at that rank:"]
        parts += [markdown_table(["", *(f"rank {n}" for n in range(ranks))], [_ranks(s, ranks) for s in drafting])]
    return "\n\n".join(parts)


def _amount(results: Results, cell: Cell) -> str:
    plain = next((s for s in summaries(results, cell) if s.contender == PLAIN), None)
    if plain is None:
        return "Plain decoding has not been measured yet."
    tokens = f"{plain.num_tokens:,} tokens in {plain.seconds:.1f} s"
    short = results.shortfall(cell)
    missing = "" if short is None else f" **Unfinished:** {short}."
    return f"{plain.num_answers} answers in {plain.num_groups} groups; plain decoding gave {tokens}.{missing}"


def _category_table(results: Results, cell: Cell, names: Sequence[str]) -> str:
    by_category = {name: {s.contender: s for s in summaries(results, cell, category=name)} for name in names}
    contenders = [s.contender for s in summaries(results, cell)]
    heads = ["", *(f"{name} ({_groups(by_category[name].values())})" for name in names)]
    rows = [
        [c, *(estimate_words(by_category[name][c].speedup) if c in by_category[name] else NONE for name in names)]
        for c in contenders
    ]
    return markdown_table(heads, rows)


def _groups(found: Iterable[Summary]) -> int:
    return max(summary.num_groups for summary in found)


def _phase_table(results: Results, found: Sequence[Summary]) -> str:
    told = [s for s in found if s.phases]
    names = list(dict.fromkeys(name for s in told for name in s.phases))
    rows = [
        [
            _named(results, s.contender),
            *(f"{s.phases.get(name, 0.0):.1%}" for name in names),
            f"{1e3 * s.seconds / max(1, s.num_tokens):.2f} ms",
        ]
        for s in told
    ]
    return markdown_table(["", *names, "in all, a token"], rows)


def _alphas(s: Summary) -> list[str]:
    rates = () if s.drafts is None else s.drafts.acceptance_by_depth
    return [s.contender, *(number_words(rates[n]) if n < len(rates) else NONE for n in range(DEPTHS))]


def _ranks(s: Summary, count: int) -> list[str]:
    rates = () if s.drafts is None else s.drafts.acceptance_by_rank
    return [s.contender, *(f"{rates[n]:.3f}" if n < len(rates) else NONE for n in range(count))]


def _shape(results: Results, name: str) -> str:
    return str(results.header.contenders[name].get("shape", NONE))


def _named(results: Results, name: str) -> str:
    lossy = results.header.contenders[name].get("guarantee") == "lossy"
    return f"{name} (LOSSY)" if lossy else name


def _setup(results: Results) -> str:
    plan, origin = results.header.plan, results.header.provenance
    lines = ["## Set-up", ""]
    lines += [
        f"- prompts: {markdown_text(f['name'])}, {f['num_questions']} questions (sha256 {markdown_text(f['sha256'][:12])})"
        for f in plan.get("prompts", [])
    ]
    lines += [f"- target: {markdown_text(f'{one.target}, {one.dtype} on {one.device}')}" for one in results.loaded]
    settings = {**plan.get("settings", {}), "selection": plan.get("selection")}
    if not settings.get("dtypes"):
        settings["dtypes"] = "the target's own"
    lines += [f"- {markdown_text(f'{name}: {_words(value)}')}" for name, value in {**settings, **origin}.items()]
    resumed = [f"{again.get('started')}, commit {again.get('git_commit')}" for again in results.resumed]
    lines += [f"- resumed: {markdown_text(words)}" for words in resumed]
    return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items()) or NONE
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or NONE
    return NONE if value is None else str(value)


def csv_table(results: Results) -> str:
    """One line a setting, category and contender; the category of all questions is 'all'."""
    rows = list(_csv_rows(results))
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({column: csv_cell(column) for column in columns})
    writer.writerows({column: csv_cell(value) for column, value in row.items()} for row in rows)
    return text.getvalue()


def _csv_rows(results: Results) -> Iterator[dict[str, Any]]:
    for cell in results.cells:
        for category in (None, *categories(results, cell)):
            for s in summaries(results, cell, category=category, versus=(GENERATE,)):
                yield _csv_row(s)


def _csv_row(s: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {**asdict(s.cell), "category": s.category or "all", "contender": s.contender}
    row |= {name: getattr(s, name) for name in ("num_groups", "num_answers", "num_tokens", "seconds", "tokens_per_second")}
    estimates = {"speedup": s.speedup, "speedup_of_totals": s.speedup_of_totals, "against_transformers": s.versus.get(GENERATE)}
    for name, found in estimates.items():
        ends = (None, None, None) if found is None else (found.value, found.low, found.high)
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    if s.drafts is not None:
        row |= {"tau": s.drafts.tau, "draft_acceptance_rate": s.drafts.draft_acceptance_rate}
        row |= {f"alpha_{n}": rate for n, rate in enumerate(s.drafts.acceptance_by_depth)}
        row |= {f"rank_{n}": rate for n, rate in enumerate(s.drafts.acceptance_by_rank)}
    row |= {f"share_{phase}": share for phase, share in s.phases.items()}
    names = ("first_token_seconds", "peak_bytes", "num_compared", "num_different")
    return row | {name: getattr(s, name) for name in names}


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(map(markdown_text, heads)) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(markdown_text, row)) + " |" for row in rows)])


def estimate_words(found: Estimate | None) -> str:
    """Such as '1.52x [1.48, 1.57]'."""
    if found is None:
        return NONE
    ends = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}x{ends}"


def number_words(value: float | None) -> str:
    """With two digits."""
    return NONE if value is None else f"{value:.2f}"


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds * 1e3:.0f} ms"
