"""Files of JSON lines that only ever grow, each an object with one key that says what it holds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specdec.errors import SpecError

T = TypeVar("T")


def whole_lines(path: Path, expected: str) -> list[bytes]:
    """The file's lines, without a last one cut short. Raises SpecError for none; `expected`: what should be there."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    if not lines:
        raise SpecError(f"{path}: no whole line; expected {expected}")
    return lines


def parsed(line: bytes, where: str, kinds: Sequence[str]) -> tuple[Any, Any]:
    """A line's key and value; what the key may be is the caller's to say. Raises SpecError for another form."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{where}: the line is damaged: {error}") from error
    if not isinstance(record, dict) or len(record) != 1:
        raise SpecError(f"{where}: expected an object with one key: {', '.join(kinds[:-1])} or {kinds[-1]}")
    return next(iter(record.items()))


def checked(adapter: TypeAdapter[T], value: Any, where: str, *, strict: bool | None = None) -> T:
    """The value as the adapter's type. Raises SpecError that names the first fault's place."""
    try:
        return adapter.validate_json(json.dumps(value), strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
