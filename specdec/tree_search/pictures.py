"""Trees, acceptance and costs drawn, as SVG, PNG or PDF by the file's ending."""

from io import BytesIO
from pathlib import Path
from typing import Any

from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.performance.acceptance_profile import AcceptanceProfile
from specdec.performance.cost_model import CostModel
from specdec.tree_search.expected_tokens import Children, reach
from specdec.trees.tree_shape import RankPath, TreeShape

ENDINGS = (".svg", ".png", ".pdf")


def check_ending(path: Path) -> None:
    """Raise SpecError unless a picture can be written to this path."""
    if path.suffix not in ENDINGS:
        raise SpecError(f"{path}: a picture ends in {', '.join(ENDINGS)}")


def draw_tree(shape: TreeShape, title: str, path: Path, children: Children | None = None) -> None:
    """The shape, ranks on its nodes; with acceptance rates, the chance of reaching each node as its shade and number."""
    leaves = [p for p in sorted(((), *shape.paths)) if p not in shape.child_counts()]
    across = _places(shape, {leaf: float(number) for number, leaf in enumerate(leaves)})
    figure, axes = _figure(max(3.0, 0.45 * len(leaves) + 1), 0.9 * shape.depth + 1.4)
    from matplotlib import colormaps

    shades = colormaps["Blues"]
    for node in shape.paths:
        above = node[:-1]
        axes.plot([across[above], across[node]], [-len(above), -len(node)], color="0.6", linewidth=1, zorder=1)
    for node in ((), *shape.paths):
        chance = None if children is None else float(reach(node, children))
        shade = "white" if chance is None else shades(0.75 * chance)
        axes.scatter([across[node]], [-len(node)], s=260, color=[shade], edgecolors="black", linewidths=0.8, zorder=2)
        label = str(node[-1]) if node else "root"
        axes.text(across[node], -len(node), label, ha="center", va="center", fontsize=8 if node else 6, zorder=3)
        if chance is not None and node:
            axes.text(across[node], -len(node) - 0.34, f"{chance:.2f}".lstrip("0"), ha="center", va="center", fontsize=6)
    axes.set_title(title, fontsize=9)
    axes.axis("off")
    axes.margins(x=0.06, y=0.12)
    _save(figure, path)


def draw_acceptance(profile: AcceptanceProfile, path: Path) -> None:
    """Rates by depth, a line for each rank, and calibration with two standard errors."""
    figure, axes = _figure(9, 3.6, columns=2)
    rows = profile.rates().by_depth
    for rank in range(min(6, max(map(len, rows)))):
        values = [row[rank] if rank < len(row) else 0.0 for row in rows]
        axes[0].plot(range(1, len(rows) + 1), values, marker=".", label=f"rank {rank}")
    total = [sum(row) for row in rows]
    axes[0].plot(range(1, len(rows) + 1), total, color="black", linestyle=":", label="any")
    axes[0].set(xlabel="level below the root", ylabel="accepted, once the parent is reached", ylim=(0, 1))
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend(fontsize="small")
    bins = profile.calibration
    if bins:
        shares = [b.accepted / b.tested for b in bins]
        errors = [2 * (share * (1 - share) / b.tested) ** 0.5 for share, b in zip(shares, bins, strict=True)]
        at = [b.probability for b in bins]
        axes[1].errorbar(at, shares, yerr=errors, fmt="o", markersize=3, capsize=2, label="measured")
        axes[1].plot(at, [profile.calibrated(p) for p in at], label="rising fit")
    axes[1].plot([0, 1], [0, 1], color="0.7", linewidth=1, label="as the drafter says")
    axes[1].set(xlabel="draft probability", ylabel="accepted, once the parent is reached", xlim=(0, 1), ylim=(0, 1))
    axes[1].legend(fontsize="small")
    figure.suptitle(profile.source, fontsize=10)
    _save(figure, path)


def draw_costs(costs: CostModel, path: Path) -> None:
    """Seconds of a forward by width, a line for each context, and of a draft level."""
    figure, axes = _figure(9, 3.6, columns=2)
    for context, row in zip(costs.contexts, costs.forward_seconds, strict=True):
        lines = axes[0].plot(costs.widths, [1e3 * s for s in row], marker=".", linestyle="", label=f"context {context}")
        fitted = [1e3 * costs.forward(width, context) for width in costs.widths]
        axes[0].plot(costs.widths, fitted, color=lines[0].get_color(), linewidth=1)
    axes[0].set(xlabel="tokens scored at once", ylabel="ms a target forward", ylim=(0, None))
    for one in axes:
        one.xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend(fontsize="small")
    if costs.drafter is not None:
        axes[1].plot(costs.drafter.widths, [1e3 * s for s in costs.drafter.seconds], marker=".")
        axes[1].axhline(1e3 * costs.drafter.first_seconds, color="0.6", linestyle=":", label="first level")
        axes[1].legend(fontsize="small")
    axes[1].set(xlabel="nodes expanded at once", ylabel="ms a draft level", ylim=(0, None))
    figure.suptitle(costs.source, fontsize=10)
    _save(figure, path)


def _places(shape: TreeShape, across: dict[RankPath, float]) -> dict[RankPath, float]:
    """A node stands in the middle of its first and last child."""
    counts = shape.child_counts()
    for node in sorted(counts, key=len, reverse=True):
        across[node] = (across[*node, 0] + across[*node, counts[node] - 1]) / 2
    return across


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(width, 60), min(height, 40)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: Path) -> None:
    check_ending(path)
    content = BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=130)
    write_whole(path, content.getvalue())
