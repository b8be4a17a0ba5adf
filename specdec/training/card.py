"""The model card of a trained head."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.files.jsonl import parse_json
from specdec.training.spec import TrainingSpec

MEASURED_BY = "greedy chain of 5 on held-out answers of the target at temperature 0, by teacher forcing"


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says that neither spec nor log know. data: a line on each source. measured: rows of name and value."""

    license: str
    target: str
    data: tuple[str, ...]
    measured: tuple[tuple[str, str], ...] = ()


def write_card(folder: Path, spec: TrainingSpec, log: Path, facts: CardFacts) -> None:
    """README.md and curves.png beside the head, from its spec, its log and the facts."""
    records = read_log(log)
    draw_curves(records, folder / "curves.png", spec.name)
    best = max((r for r in records if "tau" in r), key=lambda r: float(r["tau"]), default=None)
    (folder / "README.md").write_text(card_text(spec, records, best, facts), encoding="utf-8")


def card_text(spec: TrainingSpec, records: list[dict[str, Any]], best: dict[str, Any] | None, facts: CardFacts) -> str:
    """The card in Markdown."""
    seen = max((int(r["tokens"]) for r in records if "tokens" in r), default=0)
    seconds = max((float(r["seconds"]) for r in records if "seconds" in r), default=0.0)
    lines = [
        f"---\nlicense: {facts.license}\nlibrary_name: specdec\ntags: [speculative-decoding, {spec.head.kind}]\n---",
        f"# {spec.name}",
        f"An {spec.head.kind.upper()} draft head for {facts.target}. It saw {seen:,} tokens in {seconds / 60:.0f} minutes.",
        "## Acceptance",
        *_acceptance(best),
        *([_table(("measure", "value"), facts.measured)] if facts.measured else []),
        "![curves](curves.png)",
        "## Data",
        "\n".join(f"- {line}" for line in facts.data),
        "Only words of the assistant are learnt from; questions of the held-out part occur in no source that is learnt from.",
        "## Recipe",
        f"```json\n{json.dumps(_recipe(spec), indent=2)}\n```",
    ]
    return "\n\n".join(lines) + "\n"


def _recipe(spec: TrainingSpec) -> dict[str, Any]:
    """The spec without the folders of one machine."""
    recipe = spec.model_dump(mode="json", exclude={"features", "output"})
    for name, source in spec.data.sources.items():
        recipe["data"]["sources"][name]["path"] = source.path.name
    return recipe


def _acceptance(best: dict[str, Any] | None) -> list[str]:
    if best is None:
        return ["Not validated."]
    names = tuple(f"{depth}-alpha" for depth in range(len(best["alpha"])))
    row = (*(f"{alpha:.3f}" for alpha in best["alpha"]), f"{best['tau']:.3f}")
    return [f"By {MEASURED_BY} ({best['positions']:,} drafts tested):", _table((*names, "tau"), [row])]


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL log; a last line cut short is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(parse_json(line, nan=True))
        except ValueError:
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
