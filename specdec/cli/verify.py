"""`verify`: is a decoder lossless? Four levels of proof, each with its own verdict.

What they need is imported when they are run, so that other commands start without it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from specdec.cli import verify_options as options
from specdec.cli.price import PriceFound, verify_priced, write_certificates
from specdec.cli.terminal import (
    Json,
    Settings,
    TemplateArguments,
    TrustRemoteCode,
    chat_format,
    fail,
    guarded,
    hold,
    print_json,
    print_table,
)
from specdec.cli.verify_callable import Foreign, one_named, verify_foreign
from specdec.cli.verify_options import WantedLevel
from specdec.compose import resolve
from specdec.config.catalog import load_catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.errors import SpecdecError, SpecError
from specdec.files.locks import exclusive
from specdec.interfaces.declarations import Kind
from specdec.interfaces.text_codec import ChatFormat
from specdec.losslessness.levels import Level, LevelResult, Progress, exit_code
from specdec.losslessness.report_files import report_data, report_folder, write_report

if TYPE_CHECKING:
    from specdec.losslessness.suite import Verification


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help="Prove that a strategy, or any decoder, follows its target; one verdict per level.")(verify)


@guarded
def verify(
    strategy: options.Strategy = None,
    level: options.WhichLevel = WantedLevel.EXACT,
    settings: Settings = None,
    target: options.Target = None,
    trust: TrustRemoteCode = None,
    budget: options.Budget = None,
    report: options.Report = None,
    seed: options.Seed = 0,
    function: options.Function = None,
    peer: options.Peer = None,
    assistant: options.Assistant = None,
    vocab: options.Vocab = None,
    depth: options.Depth = None,
    models: options.Models = None,
    template_arg: TemplateArguments = None,
    certificate: options.CertificateFile = None,
    json: Json = False,
) -> None:
    """Exit 0: proved. Exit 1: refuted; a lossy strategy reports its distance and exits 0, as it claims nothing.

    Exit 1, too: a total variation that may be above `max_tv`. Exit 3: inconclusive within the budget. Exit 2: a part failed.
    """
    from specdec.losslessness.suite import Wanted

    foreign = one_named(strategy, Foreign(function, peer, assistant), certificate)
    _check_sizes(level, budget, {"vocab": vocab, "depth": depth, "models": models}, None if strategy else foreign)
    chat, catalog = _chat_format(template_arg, level, foreign.name is not None), load_catalog(trust_remote_code=trust)
    resolved = resolve(strategy or "plain", catalog, settings=settings, target=target)
    folder = None if report is None else _held_folder(report)
    name = foreign.name or resolved.spec.name
    with _progress(name) as progress:
        if foreign.name is not None:
            found, price = verify_foreign(foreign, resolved, catalog, level, budget, seed, chat, progress), PriceFound()
        else:
            wanted = Wanted(_levels(level), budget, seed, vocab, depth, models, chat)
            found, price = verify_priced(resolved, catalog, wanted, progress, certificate)
    _print(name, resolved, found, seed, level, price, json=json)
    _write_report(folder, name, resolved, found, seed, json=json)
    _leave(resolved, found, price, certificate, seed, json=json)


def _levels(level: WantedLevel) -> list[Level]:
    return list(Level) if level is WantedLevel.ALL else [Level(level.value)]


def _chat_format(given: list[str] | None, level: WantedLevel, is_foreign: bool) -> ChatFormat:
    """Of the levels that ask the model. Raises SpecError where none of them is run."""
    if given and level is WantedLevel.EXACT and not is_foreign:
        raise SpecError("--template-arg: the stand-in models of level exact have no chat template; it needs another --level")
    return chat_format(given)


def _held_folder(report: Path) -> Path:
    """The report's folder, which no other command may write to until this one ends."""
    hold(exclusive(report, folder=True))
    return report_folder(report)


def _write_report(
    folder: Path | None, name: str, resolved: ResolvedSpec, found: "Verification", seed: int, *, json: bool
) -> None:
    """The report's files, each named when it is written; on stderr, where stdout holds JSON."""
    if folder is None:
        return
    data = report_data(name, resolved.plain(), found.results, seed, found.fault_words)
    for file in write_report(folder, data, found.results):
        typer.echo(f"written: {file}", err=json)


def _leave(
    resolved: ResolvedSpec, found: "Verification", price: PriceFound, certificate: Path | None, seed: int, *, json: bool
) -> None:
    """With the exit status of the verdicts and of `max_tv`, once certificates are written."""
    _raise_faults(found)
    limited = write_certificates(resolved, price, found.results, certificate, seed, json=json)
    if code := exit_code(found.results) or limited:
        raise typer.Exit(code)


def _raise_faults(found: "Verification") -> None:
    """Report what kept levels from running, each error once with its levels. Raises SpecdecError for the first."""
    said = [f"{levels}: {words}" for levels, words in found.fault_words.items()]
    for words in said[1:]:
        fail(words)
    if said:
        raise SpecdecError(said[0]) from next(iter(found.faults.values()))


def _check_sizes(level: WantedLevel, budget: float | None, exact: dict[str, int | None], foreign: Foreign | None) -> None:
    """Raise SpecError for a budget without an end, and for options of the exact level where that is not run."""
    if budget is not None and not isfinite(budget):
        raise SpecError(f"--budget: got {budget}, expected a finite number of seconds")
    given = [name for name, value in exact.items() if value is not None]
    if given and (foreign is not None or level not in (WantedLevel.EXACT, WantedLevel.ALL)):
        run = f"--level {level.value}" if foreign is None else "--callable" if foreign.peer is None else "--peer"
        raise SpecError(f"--{given[0]}: is for the stand-in models of level exact; {run} has none")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[Level], Progress]]:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=1.0, words="")

        def of_level(level: Level) -> Progress:
            return lambda share, words: bar.update(
                task, description=f"{name}: {level.value}", completed=min(1.0, share), words=words
            )

        yield of_level


def _print(
    name: str, resolved: ResolvedSpec, found: "Verification", seed: int, level: WantedLevel, price: PriceFound, *, json: bool
) -> None:
    exact_only = level is WantedLevel.EXACT and all(result.level is Level.EXACT for result in found.results)
    if json and exact_only and found.results:
        print_json({**found.results[0].facts, **price.plain})
    elif json:
        print_json({**report_data(name, resolved.plain(), found.results, seed, found.fault_words), **price.plain})
    elif exact_only:
        for result in found.results:
            typer.echo("\n".join([f"{name}: {result.words}", *_lines(result)]))
    else:
        _print_levels(name, resolved, found.results)
    if not json:
        for line in price.lines:
            typer.echo(line)


def _print_levels(name: str, resolved: ResolvedSpec, results: tuple[LevelResult, ...]) -> None:
    target = resolved.parts[Kind.TARGET]
    if not results:
        return
    for result in results:
        typer.secho(f"{result.level.value} ({result.seconds:.0f} s)", bold=True)
        typer.echo("\n".join(_lines(result) or [f"  {result.words}"]))
    rows: list[list[Any]] = [[result.level.value, result.outcome.value, result.words] for result in results]
    print_table(f"{name} on target '{target.name}'", ["level", "verdict", "what was found"], rows)


def _lines(result: LevelResult) -> list[str]:
    return [f"  {title:16} {words}" for title, words in result.lines]
