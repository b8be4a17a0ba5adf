"""Files of JSON lines: parsed one way, and written so that a line that is there is whole, unless it is the last."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specdec.errors import SpecError
from specdec.files.atomic import writing
from specdec.files.reading import bytes_of, text_of

T = TypeVar("T")

HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""How a surrogate is written in JSON: two of them make one character, one makes none."""


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(`FILE:LINE`, text) of every line that is not blank. Raises SpecError for a file that cannot be read."""
    lines = text_of(path).split("\n")
    return ((f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())


def whole_lines(path: Path, expected: str) -> list[bytes]:
    """The file's lines, without a last one cut short. Raises SpecError for none; `expected`: what should be there."""
    content = bytes_of(path)
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    if not lines:
        raise SpecError(f"{path}: no whole line; expected {expected}")
    return lines


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: in UTF-8, if bytes.
        nan: whether NaN and infinities, which JSON does not have, are taken.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds a number or a text that nothing can be done with.
    """
    words = text if isinstance(text, str) else text.decode("utf-8")
    try:
        value = json.loads(words, parse_constant=None if nan else _no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if HALF_CHARACTER.search(words):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds half a character ({error.object[error.start]!a})") from error
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def parsed(line: bytes, where: str, kinds: Sequence[str]) -> tuple[Any, Any]:
    """A line's key and value; what the key may be is the caller's to say. Raises SpecError for another form."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise SpecError(f"{where}: the line is damaged: {error}") from error
    if not isinstance(record, dict) or len(record) != 1:
        raise SpecError(f"{where}: expected an object with one key: {', '.join(kinds[:-1])} or {kinds[-1]}")
    return next(iter(record.items()))


def checked(adapter: TypeAdapter[T], value: Any, where: str, *, strict: bool | None = None) -> T:
    """The value as the adapter's type. Raises SpecError that names the first mistake's place."""
    try:
        return adapter.validate_json(json.dumps(value), strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise SpecError(f"{where}: {place}: {said}" if place else f"{where}: {said}") from error


def append_lines(path: Path, records: Iterable[Any], *, only_ascii: bool = False) -> None:
    """Add a line for each record, folders above the file made. Raises SpecError where that fails, naming the reason."""
    text = "".join(json.dumps(record, ensure_ascii=only_ascii) + "\n" for record in records)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode(errors="replace"))


def cut_unfinished_line(path: Path) -> int:
    """Take away what stands after the last line break of a file; the bytes that are left."""
    with writing(path):
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
    return whole
