"""`profile`: what decoding costs here. `acceptance`: how often drafts are accepted.

What they need is imported when they are called, so that other commands start without it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specdec.cli.output_files import claim_outputs
from specdec.cli.terminal import (
    Settings,
    Strategy,
    TargetModel,
    TemplateArguments,
    TrustRemoteCode,
    chat_format,
    fail,
    guarded,
    print_table,
)
from specdec.compose import build, resolve
from specdec.config.catalog import load_catalog
from specdec.config.library import SUFFIXES, Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind

if TYPE_CHECKING:
    from specdec.performance.acceptance_profile import AcceptanceProfile
    from specdec.performance.cost_model import CostModel

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The YAML file to write.", show_default=False)]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw a figure: .svg, .png or .pdf.")]

Prompts = Annotated[list[Path], typer.Option("--prompts", metavar="FILE", help="JSON lines with questions. Repeatable.")]
Count = Annotated[int | None, typer.Option(min=1, help="How many questions of each file, from its start.")]
OwnSteps = Annotated[bool, typer.Option("--own-steps", help="Count the strategy's own steps, with its own tree and verifier.")]

NOISY = 0.2
"""Spread from which a measurement is said to be noisy."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("profile", help="Measure seconds by tree width and context, for tree search and adaptive trees.")(profile)
    app.command("acceptance", help="Measure how often drafts are accepted, by rank, depth and draft probability.")(acceptance)


@guarded
def profile(
    what: Annotated[str, typer.Argument(metavar="STRATEGY|TARGET", help="A strategy, or a model's name, folder or hub id.")],
    output: Output,
    max_width: Annotated[int, typer.Option(min=1, max=1024, help="The largest number of tokens scored together.")] = 48,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="Number of cached tokens. Repeatable. [default: 128, 512]")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples per width; their median is used.")] = 7,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    plot: Plot = None,
) -> None:
    """Run it on an idle machine: other programs distort the measurement."""
    from specdec.bench.provenance import provenance
    from specdec.performance.cost_model import write_costs
    from specdec.tree_search.cost_run import CostPlan, default_widths, measure_costs
    from specdec.tree_search.pictures import draw_costs

    claim_outputs(output, plot)
    catalog = load_catalog(trust_remote_code=trust)
    resolved = _plan(what, catalog, target, settings)
    decoder = _decoder(resolved, catalog)
    contexts = tuple(sorted(set(context or (128, 512))))
    with progress_bar("rounds", rounds + 1) as step:
        costs = measure_costs(
            decoder,
            CostPlan(default_widths(max_width), contexts, rounds),
            source=f"{resolved.spec.name} on {decoder.target.facts.description}",
            provenance={**provenance(), **_facts(decoder)},
            on_round=step,
        )
    write_costs(output, costs)
    if plot is not None:
        draw_costs(costs, plot)
    _print_costs(costs)


def _plan(what: str, catalog: Catalog, target: str | None, settings: list[str] | None) -> ResolvedSpec:
    """The resolved spec of a strategy; of plain decoding for a target's name, folder or hub id."""
    if what in catalog.library.strategies() or what.endswith(SUFFIXES):
        return resolve(what, catalog, settings=settings, target=target)
    if target is not None:
        raise SpecError(f"'{what}' is no strategy, and --target names a target already")
    return resolve("plain", catalog, settings=settings, target=what)


def _decoder(resolved: ResolvedSpec, catalog: Catalog) -> Decoder:
    with redirect_stdout(sys.stderr):
        return build(resolved, catalog)


def _facts(decoder: Decoder) -> dict[str, Any]:
    facts = decoder.target.facts
    return {
        "target": facts.description,
        "dtype": str(facts.dtype).removeprefix("torch."),
        "device": str(facts.device),
        "drafter": type(decoder.drafter).name,
    }


def _print_costs(costs: "CostModel") -> None:
    rows = []
    for column, width in enumerate(costs.widths):
        cells = [f"{1e3 * row[column]:.2f}" for row in costs.forward_seconds]
        ratios = [f"{row[column] / row[0]:.3f}" for row in costs.forward_seconds]
        rows.append([str(width), *cells, *ratios])
    heads = [f"ms at {context}" for context in costs.contexts] + [f"t(n)/t(1) at {context}" for context in costs.contexts]
    print_table(costs.source, ["tokens", *heads], rows)
    noise = [spread for row in costs.spread for spread in row]
    lines = [
        f"overhead a step: {1e3 * costs.overhead_seconds:.2f} ms, plain {1e3 * costs.plain_overhead_seconds:.2f} ms",
        f"spread (interquartile range / median): median {sorted(noise)[len(noise) // 2]:.1%}, worst {max(noise):.1%}",
    ]
    if costs.drafter is not None:
        pairs = zip(costs.drafter.widths, costs.drafter.seconds, strict=True)
        levels = ", ".join(f"{width}: {1e3 * seconds:.2f}" for width, seconds in pairs)
        further = f"{1e3 * costs.drafter.row_seconds:.2f} ms more a level for each further sequence of a batch"
        first = f"first level {1e3 * costs.drafter.first_seconds:.2f} ms"
        lines.insert(0, f"{costs.drafter.name}: {first}; by nodes: {levels} ms; {further}")
    typer.echo("\n".join(lines))
    if sorted(noise)[len(noise) // 2] > NOISY:
        fail("warning: the machine was not quiet; measure again when nothing else runs, or with more --rounds")


@guarded
def acceptance(
    strategy: Strategy,
    prompts: Prompts,
    output: Output,
    count: Count = 20,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Maximum number of tokens per answer.")] = 128,
    width: Annotated[int, typer.Option(min=1, max=36, help="Ranks to follow.")] = 8,
    depth: Annotated[int, typer.Option(min=1, max=35, help="Levels to follow.")] = 8,
    own_steps: OwnSteps = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random draws.")] = 0,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    template_arg: TemplateArguments = None,
    plot: Plot = None,
) -> None:
    """By default every token of plain decoding's answers is a root, and drafts are followed along the answer."""
    from specdec.bench.prompts import Selection, read_questions
    from specdec.bench.provenance import provenance
    from specdec.tree_search.acceptance_run import AcceptancePlan, check_measurable, first_turns, measure_acceptance

    claim_outputs(output, plot, inputs=prompts)
    chat = chat_format(template_arg)
    questions, files = read_questions(prompts, Selection(count))
    catalog = load_catalog(trust_remote_code=trust)
    resolved = resolve(strategy, catalog, settings=settings, target=target)
    check_measurable(resolved.parts[Kind.DRAFTER].declares, resolved.parts[Kind.TREE].declares, own_steps=own_steps)
    decoder = _decoder(resolved, catalog)
    names = ", ".join(file.name for file in files)
    asked = first_turns(questions, decoder.target.codec, decoder.target.facts, chat_format=chat)
    plan = AcceptancePlan(max_new_tokens, width, depth, own_steps, seed)
    source = f"{resolved.spec.name} on {len(asked)} questions of {names}"
    made = {**provenance(), **_facts(decoder), "spec": resolved.plain(), "max_new_tokens": max_new_tokens}
    made |= {"chat_template_kwargs": dict(chat.arguments)} if chat.arguments else {}
    with progress_bar("answers", len(asked)) as step:
        measured = measure_acceptance(decoder, asked, plan, source=source, provenance=made, on_answer=step)
    _write_acceptance(output, plot, measured)
    _print_acceptance(measured)


def _write_acceptance(output: Path, plot: Path | None, measured: "AcceptanceProfile") -> None:
    from specdec.performance.acceptance_profile import write_acceptance
    from specdec.tree_search.pictures import draw_acceptance

    write_acceptance(output, measured)
    if plot is not None:
        draw_acceptance(measured, plot)


def _print_acceptance(profile: "AcceptanceProfile") -> None:
    rates = profile.rates().by_depth
    ranks = max(map(len, rates))
    rows = [
        [str(level + 1), str(profile.reached[level]), *[f"{rate:.3f}" for rate in row], *[""] * (ranks - len(row))]
        for level, row in enumerate(rates)
    ]
    print_table(profile.source, ["level", "reached", *[f"rank {rank}" for rank in range(ranks)]], rows)
    typer.echo(f"all levels: {' '.join(f'{rate:.3f}' for rate in profile.by_rank())}")
    if strayed := profile.provenance.get("answers_left_out"):
        fail(f"warning: {strayed} answers were left out: decoded twice, they came out differently")


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, which counts each call."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
