"""The commands put together."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated

import typer

HELP = "Compose, check, run and prove speculative decoders described in YAML."

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "describe": ("list", "show", "check", "schema"),
    "generate": ("generate",),
    "serve": ("serve",),
    "verify": ("verify",),
    "rules": ("compare-rules", "verify-rule"),
    "bench": ("bench",),
    "report": ("report", "compare"),
    "profile": ("profile", "acceptance"),
    "roofline": ("roofline",),
    "trees": ("tree",),
    "simulate": ("simulate",),
    "trace": ("trace",),
    "train": ("train", "data"),
    "heads": ("head",),
    "datastore": ("datastore",),
}
"""By module, the commands and groups that it registers, in the order of the help page."""


def application(command: str | None = None) -> typer.Typer:
    """The program: with the modules of every command, or with that of `command` alone, which then starts without the others.

    What is no command has all of them, for the help page and for the error that lists them.
    """
    app = typer.Typer(
        name="specdec",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    alone = [module for module, names in COMMANDS.items() if command in names]
    for module in alone or COMMANDS:
        import_module(f"specdec.cli.{module}").register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"specdec {version('specdec')}")
        raise typer.Exit


def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compose, check, run and prove speculative decoders described in YAML."""
    if os.environ.get("NO_COLOR"):
        context.color = False
