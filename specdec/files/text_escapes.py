"""Texts of others (names, prompts, what a model wrote) made harmless for where they are shown: one way for each place."""

import re
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet compute a cell instead of showing it."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def terminal_text(text: str) -> str:
    """Control characters and changes of direction shown by their codes, as Python writes them; line breaks and tabs stay."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def json_text(text: str) -> str:
    """JSON with the same characters as JSON escapes: they occur in its strings alone, and a reader gets them back."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def markdown_text(text: str) -> str:
    """One line that is neither HTML, nor a link or picture, nor the end of a table's cell."""
    line = terminal_text(" ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return line.replace("![", "!\\[").replace("](", "]\\(")


def csv_cell(value: Any) -> Any:
    """A text that spreadsheets show as it is; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def file_name(text: str) -> str:
    """A part of a file's name: no folder, no blank, no control character."""
    return re.sub(r"[^\w.+-]", "_", text)
