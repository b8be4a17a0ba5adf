"""`tree search`: the fastest tree for measured acceptance and costs."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec.cli.output_files import keep_inputs
from specdec.cli.terminal import Json, fail, guarded, print_json, print_table
from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.performance.acceptance_profile import AcceptanceProfile, read_acceptance
from specdec.performance.cost_model import CostModel, read_costs
from specdec.tree_search.expected_tokens import expansions
from specdec.tree_search.families import Family, tree_options
from specdec.tree_search.optimizer import Bounds, Candidate, Found, Method, search_tree
from specdec.trees.tree_file import Prediction, TreeFile, format_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

AcceptanceFile = Annotated[
    Path, typer.Option("--acceptance", "-a", metavar="FILE", help="Written by `specdec acceptance`.", show_default=False)
]
CostFile = Annotated[
    Path, typer.Option("--cost", "-c", metavar="FILE", help="Written by `specdec profile` or `roofline`.", show_default=False)
]


@guarded
def search(
    acceptance: AcceptanceFile,
    cost: CostFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The tree file to write; none if plain decoding wins.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=512, help="Maximum number of drafted nodes. [default: as far as the costs reach]")
    ] = None,
    depth: Annotated[int, typer.Option(min=1, max=64, help="Maximum number of levels.")] = 8,
    context: Annotated[
        int | None, typer.Option(min=1, help="Number of cached tokens. [default: the median of the measured ones]")
    ] = None,
    method: Annotated[Method, typer.Option(help="dynamic: optimal; greedy: best-first; brute: every tree.")] = Method.DYNAMIC,
    family: Annotated[
        Family, typer.Option("--builder", help="any: every shape; the others: the shapes and options of that builder.")
    ] = Family.ANY,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="Use one vector of rates for all depths.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the tree. [default: the file's name]")] = None,
    json: Json = False,
) -> None:
    """Maximise expected tokens / (t(n)/t(1) + drafting); plain decoding is always a candidate."""
    _check_output(output, (acceptance, cost), family)
    profile, costs = read_acceptance(acceptance), read_costs(cost)
    at = middle(costs) if context is None else context
    most = nodes if nodes is not None else min(64, costs.widths[-1] - 1) or 1
    bounds = Bounds(tuple(range(1, most + 2)), depth, method, family)
    found = search_tree(profile, costs, bounds, context=at, by_rank=by_rank)
    written = output if output is not None and found.best.shape.num_nodes else None
    if written is not None:
        write_whole(written, format_tree(_tree_file(found, profile, costs, name or written.stem, at)))
    if costs.drafter is None:
        fail(f"warning: {cost} has no costs of a drafter, so that drafting counts as free")
    if json:
        print_json(_report(found, costs, at, written, family))
        return
    print_table(f"{profile.source}; {costs.source}; context {at}", HEADINGS, [_row(c, costs, at) for c in found.by_size])
    _print_best(found.best, written, family)


def _check_output(output: Path | None, inputs: tuple[Path, Path], family: Family) -> None:
    if output is None:
        return
    if family in (Family.CHAINS, Family.PAIR):
        raise SpecError(f"--output: '{family}' takes no tree file; without it, the options of the fastest are printed")
    keep_inputs(output, inputs)


def _print_best(best: Candidate, written: Path | None, family: Family) -> None:
    if not best.shape.num_nodes:
        typer.echo("nothing beats plain decoding here: no tree is written")
        return
    typer.echo(
        f"best: {best.shape.num_nodes} nodes, depth {best.shape.depth}: tau {best.tokens:.3f}, speed-up {best.speedup:.3f}"
        + (f"; written to {written}" if written is not None else "")
    )
    if options := tree_options(family, best.shape):
        typer.echo("tree: {" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}")


HEADINGS = ("nodes", "depth", "by level", "tau", "t(n)/t(1)", "drafting/t(1)", "speed-up")


def _row(candidate: Candidate, costs: CostModel, context: int) -> "Sequence[str]":
    shape, one = candidate.shape, costs.forward(1, context)
    return (
        str(shape.num_nodes),
        str(shape.depth),
        " ".join(map(str, shape.level_sizes())) or "plain decoding",
        f"{candidate.tokens:.3f}",
        f"{costs.forward(candidate.size, context) / one:.3f}",
        f"{costs.draft(expansions(shape)) / one:.3f}",
        f"{candidate.speedup:.3f}",
    )


def _tree_file(found: Found, profile: AcceptanceProfile, costs: CostModel, name: str, context: int) -> TreeFile:
    best = found.best
    how = "answers replayed" if found.replayed else "closed form"
    basis = f"{profile.source}; {costs.source}; context {context}; {how}"
    predicted = Prediction(tau=round(best.tokens, 4), speedup=round(best.speedup, 4), basis=basis)
    return TreeFile(name, "specdec tree search, the dynamic program of arXiv 2402.12374", best.shape, predicted)


def _report(found: Found, costs: CostModel, context: int, written: Path | None, family: Family) -> dict[str, Any]:
    def facts(candidate: Candidate) -> dict[str, Any]:
        return {
            "nodes": candidate.shape.num_nodes,
            "depth": candidate.shape.depth,
            "paths": candidate.shape.paths,
            "tau": candidate.tokens,
            "step_seconds": candidate.step_seconds,
            "speedup": candidate.speedup,
        }

    return {
        "context": context,
        "best": {**facts(found.best), "options": tree_options(family, found.best.shape)},
        "by_size": [facts(candidate) for candidate in found.by_size],
        "replayed": found.replayed,
        "plain_step_seconds": costs.plain(context),
        "written": None if written is None else str(written),
    }


def middle(costs: CostModel) -> int:
    """The median of the measured contexts."""
    return round(median(costs.contexts))
