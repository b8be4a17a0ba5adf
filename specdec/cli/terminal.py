"""What all commands share: errors without tracebacks, JSON, tables, and the options that repeat."""

import json
import math
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from specdec.cli.output import unwritable, writes_unicode
from specdec.errors import SpecdecError, SpecdecWarning, SpecError
from specdec.files.text_escapes import json_text, terminal_text
from specdec.files.yaml_document import read_value
from specdec.interfaces.text_codec import ChatFormat

DEBUG = "SPECDEC_DEBUG"
"""Environment variable: 1 shows the traceback of an error."""

NARROW = 60
"""Columns below which a table is written one line under the other."""

_UNTIL_THE_END: ContextVar[ExitStack] = ContextVar("what the running command holds")

P = ParamSpec("P")
R = TypeVar("R")

Strategy = Annotated[str, typer.Argument(help="A shipped strategy's name, or a path to a .yaml file.", show_default=False)]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as tree.nodes=24. Repeatable.")
]
TargetModel = Annotated[
    str | None, typer.Option("--target", metavar="PATH", help="A model folder or hub id instead of the strategy's target.")
]
TrustRemoteCode = Annotated[
    bool | None,
    typer.Option(
        "--trust-remote-code",
        help="Run code from a model's repository; a YAML file cannot allow it. [default: SPECDEC_TRUST_REMOTE_CODE]",
        show_default=False,
    ),
]
TemplateArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--template-arg",
        metavar="KEY=VALUE",
        help="A variable of the chat template, such as enable_thinking=false. Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """The command with its errors as one message on stderr and exit 2; an interrupt exits 130, a closed pipe 141 quietly.

    SPECDEC_DEBUG=1 shows where an error was raised.
    """

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            with _warnings_in_a_line(), _held():
                result = command(*arguments, **options)
            sys.stdout.flush()
        except SpecdecError as error:
            if os.environ.get(DEBUG):
                traceback.print_exc()
            fail(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            fail("interrupted")
            raise typer.Exit(130) from None
        except OSError as error:
            if (code := unwritable(error)) is None:
                raise
            raise typer.Exit(code) from None
        return result

    return run


@contextmanager
def _held() -> Iterator[None]:
    with ExitStack() as stack:
        token = _UNTIL_THE_END.set(stack)
        try:
            yield
        finally:
            _UNTIL_THE_END.reset(token)


def hold(resource: AbstractContextManager[Any]) -> None:
    """Enter it until the running command ends, however it does."""
    _UNTIL_THE_END.get().enter_context(resource)


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Our own warnings as messages on stderr; others as they were."""
    shown_before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, SpecdecWarning):
            fail(f"warning: {message}")
        else:
            shown_before(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", SpecdecWarning)
        warnings.showwarning = show
        yield


def template_arguments(given: Sequence[str] | None) -> dict[str, Any]:
    """The variables of `--template-arg`, their values read as YAML. Raises SpecError."""
    arguments = {}
    for setting in given or ():
        name, equals, text = setting.partition("=")
        if not equals or not name.strip().isidentifier():
            raise SpecError(f"--template-arg {setting}: expected KEY=VALUE, such as enable_thinking=false")
        arguments[name.strip()] = read_value(text, f"--template-arg {setting}")
    return arguments


def chat_format(given: Sequence[str] | None) -> ChatFormat:
    """How conversations are put to the chat template: with the variables of `--template-arg`. Raises SpecError."""
    return ChatFormat(template_arguments(given))


def fail(message: str) -> None:
    """A message on stderr."""
    typer.echo(f"specdec: {terminal_text(message)}", err=True)


def print_json(value: Any) -> None:
    """Indented JSON; numbers that are none (NaN, infinity) become null, characters that steer a terminal are escaped.

    So are all beyond ASCII where stdout is not UTF-8.
    """
    typer.echo(json_text(json.dumps(_finite(value), indent=2, ensure_ascii=not writes_unicode())))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def print_notes(lines: Iterable[str]) -> None:
    """Lines about what was printed, dim, below it."""
    for line in lines:
        typer.secho(line, dim=True)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, as wide as the terminal or COLUMNS; whole lines where there is neither."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(markup=False, highlight=False, width=160)
    typer.secho(terminal_text(title), bold=True)
    if console.width < NARROW:
        _print_narrow(rows, console.width)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0, overflow="fold", header_style="dim")
    for row in rows:
        table.add_row(*map(terminal_text, row))
    with console.capture() as captured:
        console.print(table)
    typer.echo(captured.get(), nl=False)


def _print_narrow(rows: Iterable[Sequence[str]], width: int) -> None:
    for name, *more in rows:
        typer.echo(terminal_text(name))
        for text in map(terminal_text, filter(None, more)):
            typer.echo(textwrap.fill(text, max(width, 10), initial_indent="  ", subsequent_indent="  "))
