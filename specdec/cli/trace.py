"""`trace show`: a page that steps through a generation that was written down by `generate --trace`."""

from pathlib import Path
from typing import Annotated

import typer

from specdec.cli.output_files import check_outputs
from specdec.cli.terminal import Json, guarded, print_json
from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.files.paths import is_same

traces = typer.Typer(help="Inspect traces of `specdec generate --trace`.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.add_typer(traces, name="trace")


@traces.callback()
def _group() -> None:
    """Inspect traces of `specdec generate --trace`."""


@traces.command("show", help="Make a self-contained HTML page that steps through a trace.")
@guarded
def show(
    file: Annotated[Path, typer.Argument(help="A trace.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PAGE", help="Page to write. [default: the trace's name and .html]")
    ] = None,
    json: Json = False,
) -> None:
    """Write the page; --json prints its contents instead."""
    from specdec.trace.files import read_trace
    from specdec.trace.page import page, page_data

    trace = read_trace(file)
    if json:
        print_json(page_data(trace))
        return
    path = output if output is not None else file.with_suffix(".html")
    if is_same(path, file):
        raise SpecError(f"--output {path}: is the trace itself; give the page another name")
    check_outputs(path)
    text = page(trace)
    write_whole(path, text)
    broken = "; the trace was broken off" if trace.end is None else ""
    typer.echo(f"{path}: {len(trace.steps)} steps, {len(text.encode()) / 1024:.0f} kB{broken}")
