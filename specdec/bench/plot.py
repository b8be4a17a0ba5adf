"""Results as pictures: speed-ups with their intervals, acceptance by depth, and where the time goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec.bench.measurements import PLAIN, Cell, Results
from specdec.bench.metrics import Summary, summaries
from specdec.files.atomic import whole_file
from specdec.files.text_escapes import file_name


def draw(results: Results, folder: Path) -> list[Path]:
    """PNG files in `folder`; a picture for which there is nothing to show is left out."""
    return [path for cell in results.cells for path in _draw_cell(results, cell, folder)]


def file_label(results: Results, cell: Cell) -> str:
    """A setting as part of a file's name."""
    cell = results.named(cell)
    queue = "" if cell.queue == 1 else f"-queue{cell.queue}"
    return f"{file_name(cell.dtype or 'own-dtype')}-T{cell.temperature:g}-batch{cell.batch_size}{queue}"


def _draw_cell(results: Results, cell: Cell, folder: Path) -> list[Path]:
    found = summaries(results, cell)
    made = []
    for name, draw_one in (("speedup", _speedups), ("acceptance", _acceptance), ("phases", _phases)):
        figure, axes = _figure(len(found))
        if (title := draw_one(axes, found)) is not None:
            axes.set_title(f"{title}, {results.named(cell).words}", fontsize="medium", loc="left")
            path = folder / f"{name}-{file_label(results, cell)}.png"
            with whole_file(path) as scratch:
                figure.savefig(scratch, format="png", dpi=120)
            made.append(path)
    return made


def _figure(rows: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, max(2.4, 1.1 + 0.42 * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _speedups(axes: Any, found: Sequence[Summary]) -> str | None:
    shown = [s for s in found if s.speedup is not None and s.contender != PLAIN]
    for place, s in enumerate(reversed(shown)):
        if (e := s.speedup) is None:
            continue
        error = None if e.low is None or e.high is None else [[max(0.0, e.value - e.low)], [max(0.0, e.high - e.value)]]
        colour = "tab:gray" if s.contender.startswith("transformers") else "tab:blue"
        axes.barh(place, e.value, xerr=error, color=colour, height=0.65, capsize=3, error_kw={"linewidth": 1})
        axes.annotate(f"{e.value:.2f}", (0, place), xytext=(4, 0), textcoords="offset points", va="center", color="white")
    axes.set_yticks(range(len(shown)), [s.contender for s in reversed(shown)])
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set(xlabel="times plain decoding")
    return "speed-up against plain decoding (median, 95 %)" if shown else None


def _acceptance(axes: Any, found: Sequence[Summary]) -> str | None:
    shown = [s for s in found if s.drafts is not None and s.drafts.acceptance_by_depth]
    for s in shown:
        rates = () if s.drafts is None else s.drafts.acceptance_by_depth
        axes.plot(range(1, len(rates) + 1), rates, marker="o", markersize=4, linewidth=1.2, label=s.contender)
    axes.set(xlabel="depth of the drafted token", ylim=(0, 1.02))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if shown:
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    return "acceptance by depth (accepted / tested)" if shown else None


def _phases(axes: Any, found: Sequence[Summary]) -> str | None:
    shown = [s for s in found if s.phases]
    names = list(dict.fromkeys(name for s in shown for name in s.phases))
    left = [0.0] * len(shown)
    places = range(len(shown) - 1, -1, -1)
    for name in names:
        widths = [1e3 * s.phases.get(name, 0.0) * s.seconds / max(1, s.num_tokens) for s in shown]
        axes.barh(places, widths, left=left, height=0.65, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(places, [s.contender for s in shown])
    axes.set(xlabel="milliseconds a token")
    if shown:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    return "where the time goes" if shown else None
