"""Files of JSON lines that a command appends to, and resumes only if they are its own."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdec.errors import SpecError
from specdec.files.atomic import writing
from specdec.files.jsonl import cut_unfinished_line, parse_json
from specdec.files.locks import exclusive
from specdec.files.paths import exists
from specdec.interfaces.target_identity import same_target

START = b'{"messages": '
"""How every line begins."""

Check = Callable[[Any, str, int], None]
"""Raises SpecError for a record, named by where it is, that is not what this call would write at this place (from 0)."""


@contextmanager
def resumed(path: Path, check: Check) -> Iterator[list[Any]]:
    """The records that are there, while no other process may write the file.

    An unfinished last line is cut off, and one that only lacks its end of line gets it. Raises SpecError for a file with
    anything else in it, which is left as it is, and for one that is being written already.
    """
    with exclusive(path):
        yield _known(path, check)


def _known(path: Path, check: Check) -> list[Any]:
    if not exists(path):
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    whole = content.rfind(b"\n") + 1
    records = [_record(line, f"{path}:{place + 1}", place, check) for place, line in enumerate(content[:whole].splitlines())]
    if last := content[whole:]:
        where = f"{path}:{len(records) + 1}"
        if _is_cut_short(last):
            cut_unfinished_line(path)
        else:
            records.append(_record(last, where, len(records), check))
            with writing(path), path.open("ab") as file:
                file.write(b"\n")
    return records


def check_target(record: Any, where: str, now: str) -> None:
    """Raise SpecError for a line of another target. Lines of before targets were kept name none, and pass."""
    before = record.get("target", now)
    if not isinstance(before, str) or not same_target(before, now):
        raise SpecError(f"{where}: was written by target {before!r}, not {now!r}; give another name")


def _is_cut_short(line: bytes) -> bool:
    """Whether a line begins as ours do, in ASCII, and ends before its JSON does."""
    if not START.startswith(line[: len(START)]) or not line.isascii():
        return False
    try:
        json.JSONDecoder().raw_decode(line.decode("ascii"))
    except ValueError:
        return True
    except RecursionError:
        return False
    return False


def _record(line: bytes, where: str, place: int, check: Check) -> Any:
    try:
        record = parse_json(line)
        check(record, where, place)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SpecError(f"{where}: is there and is no line of this command; give another name") from error
    return record
