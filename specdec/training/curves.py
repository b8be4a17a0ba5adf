"""A run's log as curves."""

import json
from pathlib import Path
from typing import Any


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL log; a last line cut short is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def draw_curves(records: list[dict[str, Any]], path: Path, title: str) -> None:
    """A PNG of loss and acceptance against tokens seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [r for r in records if "cross_entropy" in r]
    validations = [r for r in records if "tau" in r]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, chain = figure.subplots(1, 2)
    loss.plot([r["tokens"] / 1e6 for r in steps], [r["cross_entropy"] for r in steps], linewidth=1)
    loss.set(title="cross-entropy of the first step", xlabel="million tokens seen", ylabel="nats per token")
    seen = [r["tokens"] / 1e6 for r in validations]
    for depth in range(len(validations[0]["alpha"]) if validations else 0):
        chain.plot(seen, [r["alpha"][depth] for r in validations], marker=".", label=f"{depth}-alpha")
    chain.set(title="acceptance on held-out answers", xlabel="million tokens seen", ylim=(0, 1))
    tau = chain.twinx()
    tau.plot(seen, [r["tau"] for r in validations], color="black", marker="x", label="tau (right)")
    tau.set(ylabel="tau of a chain of 5")
    lines = [*chain.get_lines(), *tau.get_lines()]
    if lines:
        chain.legend(lines, [str(line.get_label()) for line in lines], fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
