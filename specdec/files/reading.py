"""What stands in a file, and why it cannot be read, in one form of message for all commands."""

from pathlib import Path

from specdec.errors import SpecError


def text_of(path: Path, name: str | None = None) -> str:
    """The file's text. Raises SpecError where it cannot be read, or is not UTF-8. name: what the error calls the file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(name or str(path), error) from error


def bytes_of(path: Path) -> bytes:
    """What is in the file. Raises SpecError where it cannot be read."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise unreadable(str(path), error) from error


def unreadable(name: str, error: OSError | ValueError) -> SpecError:
    """The error for a file, or another source of text, that could not be read.

    The reason stands without the name, which Python's own message repeats, and without the number of the error.
    """
    if isinstance(error, UnicodeDecodeError):
        return SpecError(f"{name}: not {error.encoding.upper()} text (byte {error.start})")
    reason = getattr(error, "strerror", None) or error
    return SpecError(f"{name}: cannot be read: {reason}")
