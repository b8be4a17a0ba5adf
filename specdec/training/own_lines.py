"""Files of JSON lines that a command appends to, and goes on with only if they are its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from specdec.errors import SpecError

Check = Callable[[Any, str, int], None]
"""Raises SpecError for a record, named by where it is, that is not what this call would write at this place (from 0)."""


def known_lines(path: Path, start: bytes, check: Check) -> list[Any]:
    """The records that are there; an unfinished last line is cut off.

    start: how every line begins. Raises SpecError for a file with anything else in it, which is left as it is.
    """
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    whole = content.rfind(b"\n") + 1
    records = [_record(line, f"{path}:{place + 1}", place, check) for place, line in enumerate(content[:whole].splitlines())]
    if whole < len(content):
        if not records and not start.startswith(content[: len(start)]):
            raise SpecError(f"{path}: is there and holds no lines of this command; give another name")
        with path.open("r+b") as file:
            file.truncate(whole)
    return records


def _record(line: bytes, where: str, place: int, check: Check) -> Any:
    try:
        record = json.loads(line)
        check(record, where, place)
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{where}: is there and is no line of this command; give another name") from error
    return record


def appending(path: Path) -> TextIO:
    """The file, open to be appended to; its folder is made. Raises SpecError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be written to: {error.strerror}") from error
