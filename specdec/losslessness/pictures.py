"""The picture of a sampled proof: wealth of the bets, p-values, and total variations."""

import io
import math
from collections.abc import Sequence
from typing import Any

from specdec.losslessness.levels import Curve
from specdec.losslessness.sampled.statistics import FALSE_ALARM

LEAST, LEAST_DISTANCE = 1e-12, 1e-4
"""p-values and total variations below these are drawn at them."""


def draw(curves: Sequence[Curve], title: str) -> bytes:
    """A PNG with a panel for each kind of curve there is."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in ("wealth", "p", "tv") if any(curve.kind == kind for curve in curves)]
    tall = max(4.0, 0.3 * max(_bars(curves, kind) for kind in kinds))
    figure = Figure(figsize=(5.5 * len(kinds), tall), layout="constrained")
    figure.suptitle(title)
    for place, kind in enumerate(kinds):
        axes = figure.add_subplot(1, len(kinds), place + 1)
        {"wealth": _wealth, "p": _p_values, "tv": _distances}[kind](axes, [c for c in curves if c.kind == kind])
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _bars(curves: Sequence[Curve], kind: str) -> int:
    return sum(len(curve.y) for curve in curves if curve.kind == kind and kind != "wealth")


def _wealth(axes: Any, curves: Sequence[Curve]) -> None:
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.name)
    axes.axhline(-math.log10(FALSE_ALARM), color="tab:red", linestyle="--", label="refuted")
    axes.set_xlabel("tokens")
    axes.set_ylabel("log10 of the e-process")
    axes.set_title("bets against losslessness")
    axes.legend(fontsize="small")


def _p_values(axes: Any, curves: Sequence[Curve]) -> None:
    heights = [-math.log10(max(curve.y[0], LEAST)) for curve in curves]
    colours = ["tab:red" if curve.y[0] < FALSE_ALARM else "tab:blue" for curve in curves]
    axes.barh([curve.name for curve in curves], heights, color=colours)
    axes.axvline(-math.log10(FALSE_ALARM), color="tab:red", linestyle="--")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_xlabel("-log10 of the adjusted p-value")
    axes.set_title("tests")


def _distances(axes: Any, curves: Sequence[Curve]) -> None:
    names = [f"{curve.name}: {label.replace('_', ' ')}" for curve in curves for label in curve.labels]
    values = [max(value, LEAST_DISTANCE) for curve in curves for value in curve.y]
    axes.barh(names, values, color=["tab:gray" if "visible" in name else "tab:blue" for name in names])
    axes.set_xscale("log")
    axes.set_xlim(left=LEAST_DISTANCE, right=1.0)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_xlabel("total variation (95 %; visible: power 0.9)")
    axes.set_title("what is left possible, what could be seen")
