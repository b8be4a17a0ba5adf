"""A comparison of rules as rows, as CSV and as a picture."""

import csv
import io
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec.losslessness.rules.comparison import Mean, RuleComparison, RuleTally


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule. accepted: tokens a step, the next token not counted; tau: with it. Spreads are half widths of 95 % intervals.

    by_node, optimum: how often it accepts a child of a node that it comes to, and how often the optimum of the transport would
    at the same nodes; None where that does not bind it, or is not known.
    """

    rule: str
    accepted: float
    accepted_spread: float | None
    tau: float
    against_own: float
    against_own_spread: float | None
    by_node: float | None
    optimum: float | None


def rule_rows(found: RuleComparison) -> list[RuleRow]:
    """Those that accept most come first."""
    rows = [_row(found, name, tally) for name, tally in found.tallies.items()]
    return sorted(rows, key=lambda row: (-row.accepted, row.rule))


def _row(found: RuleComparison, name: str, tally: RuleTally) -> RuleRow:
    accepted, difference = Mean.of(tally.per_prompt()), found.difference(name)
    return RuleRow(
        rule=name,
        accepted=accepted.value,
        accepted_spread=accepted.spread,
        tau=accepted.value + 1,
        against_own=difference.value,
        against_own_spread=difference.spread,
        by_node=tally.taken / tally.tested if tally.tested else None,
        optimum=tally.bound / tally.tested if tally.tested else None,
    )


def csv_text(rows: list[RuleRow]) -> str:
    """With a line of headings; empty where there is no value."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return file.getvalue()


def draw_rules(rows: list[RuleRow], title: str, path: Path, chain_bound: float | None = None) -> bytes:
    """A bar for each rule, with its interval; what no rule can exceed as a line, where it is known. The format: `path`'s."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 0.45 * len(rows) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    spreads = [row.accepted_spread or 0.0 for row in rows]
    axes.barh([row.rule for row in rows], [row.accepted for row in rows], xerr=spreads, color="tab:blue", capsize=3)
    if chain_bound is not None:
        axes.axvline(chain_bound, color="tab:red", linestyle="--", label="no rule accepts more")
        axes.legend(fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("accepted draft tokens a step (95 % interval over prompts)")
    axes.set_title(title, fontsize=9)
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix.removeprefix("."), dpi=110)
    return file.getvalue()
