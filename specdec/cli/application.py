"""The commands put together."""

import os
from typing import Annotated

import typer

from specdec.cli import bench, datastore, describe, generate, profile, report, roofline, simulate, trace, train, trees, verify

app = typer.Typer(
    name="specdec",
    help="Compose, check, run and prove speculative decoders described in YAML.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
describe.register(app)
generate.register(app)
verify.register(app)
bench.register(app)
report.register(app)
profile.register(app)
roofline.register(app)
trees.register(app)
simulate.register(app)
trace.register(app)
train.register(app)
datastore.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"specdec {version('specdec')}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compose, check, run and prove speculative decoders described in YAML."""
    if os.environ.get("NO_COLOR"):
        context.color = False
