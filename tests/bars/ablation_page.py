"""The ablation's results as a table in a page and as plots."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BEGIN, END = "<!-- ablation: written by tests/bars/ablation.py -->", "<!-- end of ablation -->"
DEPTH = 5
DRAWS = 4000

NAMES = {
    "shifted": "feature & shifted token (EAGLE)",
    "unshifted": "feature & unshifted token",
    "feature": "feature",
    "token": "token",
    "eagle3": "EAGLE-3",
    "shifted-own": "EAGLE, own answers",
    "eagle3-own": "EAGLE-3, own answers",
}
RATIOS = (
    ("shifted", "feature", "tau of a chain", "1.47 (speed-up 2.8 : 1.9)"),
    ("feature", "token", "tau of a chain", "1.27 (speed-up 1.9 : 1.5)"),
    ("shifted", "unshifted", "tau of a chain", "above 1"),
    ("eagle3", "shifted", "tau of a chain", "1.38-1.53 (trees)"),
    ("shifted-own", "shifted", "tau of a chain", "1.04 (trees)"),
    ("eagle3-own", "shifted-own", "tau of a chain", "1.38-1.53 (trees)"),
)
Counts = Sequence[dict[str, Any]]


def write(pieces: Sequence[dict[str, Any]], folder: Path, page: Path) -> None:
    """Replace the page's part between the marks (or append it), and write the plots."""
    by_name = {piece["piece"]: piece for piece in pieces}
    parts = [_inputs(by_name), _ratios(by_name), _trees(by_name, folder)]
    _plot_chains(by_name, folder / "chains.png")
    text = "\n\n".join([BEGIN, _conditions(by_name), *parts, *_images(folder, page), END])
    before = page.read_text() if page.is_file() else ""
    whole = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(whole.sub(lambda _: text, before) if whole.search(before) else f"{before}\n{text}\n")


def _images(folder: Path, page: Path) -> list[str]:
    found = [path for path in (folder / "chains.png", folder / "trees.png") if path.is_file()]
    return [f"![{path.stem}]({os.path.relpath(path, page.parent)})" for path in found]


def pooled(top: str, bottom: str, depth: int | None = None) -> Callable[[Counts], float]:
    """A ratio of sums over prompts."""

    def ratio(prompts: Counts) -> float:
        upper, lower = (sum(p[name] if depth is None else p[name][depth] for p in prompts) for name in (top, bottom))
        return upper / lower if lower else float("nan")

    return ratio


TAU = pooled("committed", "cycles")


def interval(figure: Callable[[Counts], float], *groups: Counts, combine: Callable[..., float] = lambda x: x) -> str:
    """A figure with its bootstrap 95 % interval over prompts; of several groups the same prompts are drawn, and combined."""
    rng = numpy.random.default_rng(0)
    draws = []
    for _ in range(DRAWS if figure(groups[0]) == figure(groups[0]) else 0):
        chosen = rng.integers(0, len(groups[0]), len(groups[0]))
        draws.append(combine(*(figure([group[place] for place in chosen]) for group in groups)))
    value = combine(*(figure(group) for group in groups))
    if not draws or not numpy.isfinite(value):
        return "-"
    low, high = numpy.nanquantile(draws, [0.025, 0.975])
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def _conditions(by_name: dict[str, Any]) -> str:
    trained = [piece for name, piece in by_name.items() if name.startswith("train")]
    chain = next(piece for name, piece in by_name.items() if name.startswith("chain"))
    first = trained[0]
    spans = [piece["distinct_tokens"] for piece in trained]
    return (
        f"Each head: {first['settings']['steps']} steps, {first['tokens']:,} slots of tokens seen, from {min(spans):,}-"
        f"{max(spans):,} tokens of conversations. Chains by teacher forcing on {len(chain['prompts'])} MT-bench first turns, "
        "answered greedily by the target in up to 128 tokens; in brackets a bootstrap 95 % interval over prompts."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _inputs(by_name: dict[str, Any]) -> str:
    known = [name for name in NAMES if f"chain {name}" in by_name]
    rows = []
    for name in known:
        prompts = by_name[f"chain {name}"]["prompts"]
        alphas = [interval(pooled("accepted", "tested", depth), prompts) for depth in range(DEPTH)]
        rows.append((NAMES[name], *alphas, interval(TAU, prompts)))
    return _table(("head", *(f"{depth}-alpha" for depth in range(DEPTH)), "tau of a chain of 5"), rows)


def _ratios(by_name: dict[str, Any]) -> str:
    """Of what differs in one thing, on the same prompts."""
    rows = []
    for first, second, what, paper in RATIOS:
        pair = [by_name[name]["prompts"] for name in (f"chain {first}", f"chain {second}") if name in by_name]
        if len(pair) == 2:
            rows.append((f"{NAMES[first]} / {NAMES[second]}", what, interval(TAU, *pair, combine=lambda f, s: f / s), paper))
    for name in NAMES:
        pair = [by_name[key]["prompts"] for heat in (1, 0) if (key := f"decode {name} static {heat}") in by_name]
        if len(pair) == 2:
            ratio = interval(TAU, *pair, combine=lambda hot, cold: hot / cold)
            rows.append((f"{NAMES[name]}: T = 1 / T = 0", "tau of the static tree", ratio, "0.80-0.91"))
    return _table(("ratio", "of", "here", "paper"), rows)


def _trees(by_name: dict[str, Any], folder: Path) -> str:
    rows, bars = [], []
    decoded = {n: piece["prompts"] for n, piece in by_name.items() if n.startswith("decode")}
    for name in dict.fromkeys(n.split()[1] for n in decoded):
        for heat in ("0", "1"):
            chain, static, dynamic = (decoded[f"decode {name} {tree} {heat}"] for tree in ("chain", "static", "dynamic"))
            taus = [interval(TAU, prompts) for prompts in (chain, static, dynamic)]
            gain = interval(TAU, static, chain, combine=lambda s, c: s - c)
            ratio = interval(TAU, dynamic, static, combine=lambda d, s: d / s)
            rows.append((NAMES[name], heat, *taus, gain, ratio))
            bars.append((f"{name}, T = {heat}", [TAU(prompts) for prompts in (chain, static, dynamic)]))
    rows.append(("paper", "0", "", "", "", "+0.6 to +0.75", "1.18-1.30"))
    if bars:
        _plot_trees(bars, folder / "trees.png")
    head = (
        "head",
        "T",
        "tau, chain of 5",
        "tau, static tree of 25",
        "tau, dynamic tree of 25",
        "static - chain",
        "dynamic / static",
    )
    return _table(head, rows)


def _figure() -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _plot_chains(by_name: dict[str, Any], path: Path) -> None:
    figure, axes = _figure()
    for name in NAMES:
        if f"chain {name}" in by_name:
            prompts = by_name[f"chain {name}"]["prompts"]
            heights = [pooled("accepted", "tested", depth)(prompts) for depth in range(DEPTH)]
            axes.plot(range(DEPTH), heights, marker=".", label=NAMES[name])
    axes.set(xlabel="n: predicted features in the input", ylabel="n-alpha", ylim=(0, None), xticks=range(DEPTH))
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(path, dpi=90)


def _plot_trees(bars: Sequence[tuple[str, Sequence[float]]], path: Path) -> None:
    figure, axes = _figure()
    for place, tree in enumerate(("chain of 5", "static 25", "dynamic 25")):
        axes.bar([n + 0.27 * (place - 1) for n in range(len(bars))], [values[place] for _, values in bars], 0.25, label=tree)
    axes.set_xticks(range(len(bars)), [name for name, _ in bars], fontsize="x-small", rotation=15)
    axes.set(ylabel="tau", ylim=(1, None))
    axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=90)
