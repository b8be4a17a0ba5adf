"""A file that holds one JSON object, such as a config.json: read as data, whatever bytes it has."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 16_000_000
"""Configs of the largest models have some ten thousand."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: with what is wrong as its message, such as "is no JSON: ..."; the file's name is the caller's to say.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"has more than {MAX_BYTES:,} bytes")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"is not readable: {error.strerror or error}") from error
    try:
        value = json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is no JSON that can be read: it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"holds a {type(value).__name__}, expected an object")
    return value
