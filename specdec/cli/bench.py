"""`bench`: strategies against plain decoding and against transformers, interleaved, into a file that can be resumed."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from specdec.cli import bench_options as options
from specdec.cli.terminal import (
    Json,
    Settings,
    TargetModel,
    TemplateArguments,
    TrustRemoteCode,
    fail,
    guarded,
    print_json,
    template_arguments,
)
from specdec.config.catalog import load_catalog
from specdec.config.library import Catalog
from specdec.errors import SpecError

SECONDS_BETWEEN_LINES = 30.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help="Compare strategies with plain decoding and with transformers, on the same prompts.")(bench)


@guarded
def bench(
    prompts: options.Prompts,
    strategies: options.Strategies = None,
    output: options.Output = Path("bench.jsonl"),
    count: options.Count = None,
    category: options.Category = None,
    turns: options.Turns = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    batch_size: options.BatchSize = None,
    queue: options.Queue = 1,
    dtype: options.Dtype = None,
    peers: options.Peers = None,
    no_peers: options.NoPeers = False,
    assistant: options.Assistant = None,
    warmup: options.Warmup = 1,
    seed: options.Seed = 0,
    chat: options.Chat = None,
    template_arg: TemplateArguments = None,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Measure, then print what came out; `specdec report` makes tables and pictures of the file."""
    from specdec.bench.contenders import Choice
    from specdec.bench.prompts import Selection

    cells = {"temperatures": temperature or (0.0,), "batch_sizes": batch_size or (1,), "dtypes": dtype or ()}
    shared = {"top_k": top_k, "top_p": top_p, "seed": seed, "warmup": warmup, "queue": queue, "chat": chat}
    plan = _settings(**cells, **shared, max_new_tokens=max_new_tokens, chat_template_kwargs=template_arguments(template_arg))
    methods, engines = _peers(peers, no_peers=no_peers)
    choice = Choice(tuple(strategies or ()), tuple(settings or ()), target, methods, assistant, engines)
    with redirect_stdout(sys.stderr) if json else nullcontext():
        catalog, selection = load_catalog(trust_remote_code=trust), Selection(count, tuple(category or ()), turns)
        _measure(plan, catalog, choice, prompts, selection, output)
    _show(output, json=json)


def _peers(asked: list[str] | None, *, no_peers: bool) -> tuple[list[str] | None, Any]:
    """Methods of transformers, None for those that fit, and endpoints as engines. Raises SpecError for both options."""
    if no_peers and asked:
        raise SpecError("--peer and --no-peers contradict each other")
    endpoints = [name for name in asked or () if name.startswith(("http://", "https://"))]
    if not endpoints:
        return [] if no_peers else asked, None
    from specdec.bench.engines import Engines
    from specdec.integrations.peers import endpoint_engine

    others = [name for name in asked or () if name not in endpoints]
    return others or None, Engines({name: endpoint_engine(name) for name in endpoints})


def _measure(plan: Any, catalog: Catalog, choice: Any, prompts: list[Path], selection: Any, output: Path) -> None:
    from specdec.bench.contenders import Lineup
    from specdec.bench.measurements import Header
    from specdec.bench.prompts import read_questions
    from specdec.bench.provenance import provenance
    from specdec.bench.results import ResultsFile
    from specdec.bench.run import Bench

    questions, files = read_questions(prompts, selection)
    lineup = Lineup(choice, catalog, plan.dtypes, [plan.sampling(temperature, None) for temperature in plan.temperatures])
    described = {"settings": plan.described(), "selection": asdict(selection)}
    header = Header({**described, "prompts": [asdict(file) for file in files]}, lineup.describe(), provenance())
    with ResultsFile(output, header) as file, _bar() as progress:
        if file.resumes:
            fail(f"resuming {output}: {len(file.done)} measurements are there")
        for line in file.changed:
            if not line.startswith("started"):
                fail(f"warning: measured elsewhere before: {line}")
        Bench(plan, questions, lineup, file, progress).run()


def _settings(**values: Any) -> Any:
    from pydantic import ValidationError

    from specdec.bench.settings import BenchSettings

    try:
        return BenchSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).removesuffix("s").replace("_", "-")
        own = first["type"] == "value_error"
        said = first["msg"].removeprefix("Value error, ") if own else f"got {first['input']!r}: {first['msg']}"
        raise SpecError(f"--{option}: {said}") from None


@contextmanager
def _bar() -> Iterator[Any]:
    """A bar with the time that is left, on stderr, where that is a terminal; elsewhere a line now and then."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        if not console.is_terminal:
            yield _Lines()
            return
        task = bar.add_task("", total=None)
        yield lambda done, planned, words: bar.update(task, completed=done, total=planned, description=words)


@dataclass(slots=True)
class _Lines:
    """Progress where there is no terminal: a line on stderr, at most every `SECONDS_BETWEEN_LINES`."""

    began: float = field(default_factory=time.monotonic)
    first: int | None = None
    last: float = 0.0

    def __call__(self, done: int, planned: int, words: str) -> None:
        now = time.monotonic()
        self.first = done if self.first is None else self.first
        made = done - self.first
        if made and now - max(self.last, self.began) >= SECONDS_BETWEEN_LINES:
            left = (now - self.began) / made * (planned - done)
            typer.echo(f"{done} of {planned} ({words}), about {left:.0f} s left", err=True)
            self.last = now


def _show(path: Path, *, json: bool) -> None:
    from specdec.bench.baselines import GENERATE
    from specdec.bench.metrics import summaries
    from specdec.bench.results import read_results
    from specdec.bench.table import main_table

    results = read_results(path)
    if json:
        cells = [summaries(results, cell, versus=(GENERATE,)) for cell in results.cells]
        print_json([asdict(summary) for cell in cells for summary in cell])
        return
    for cell in results.cells:
        typer.echo(f"\n{results.named(cell).words}\n\n{main_table(results, cell)}")
    typer.echo(f"\nresults in {path}; specdec report {path} makes tables and pictures of them")
