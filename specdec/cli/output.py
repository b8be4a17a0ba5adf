"""What becomes of a command whose output cannot be written."""

import io
import os
import sys
from collections.abc import Callable
from typing import Any


def exit_code(application: Callable[[], Any]) -> int | str | None:
    """What the process exits with after `application`, which ends with SystemExit; a last error of stdout included."""
    if sys.stdout is None:
        _say("stdout is closed: there is nowhere to write to")
        return 2
    _let_every_character_through()
    try:
        try:
            application()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            sys.stdout.flush()
            return end.code
        sys.stdout.flush()
    except OSError as error:
        if (code := unwritable(error)) is None:
            raise
        return code
    return 0


def _let_every_character_through() -> None:
    """A terminal or file of another encoding than UTF-8 shows the code of a character that it does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def writes_unicode() -> bool:
    """Whether stdout takes every character as it is."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def unwritable(error: OSError) -> int | None:
    """The exit code for output that cannot be written, and drops the rest of it; None for an error of another kind.

    141 quietly where the reader has left, 2 with a message otherwise.
    """
    if error.filename is not None:
        return None
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        return None
    if isinstance(error, BrokenPipeError):
        return 141
    _say(f"stdout cannot be written to: {error.strerror or error}")
    return 2


def _say(message: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"specdec: {message}\n")
