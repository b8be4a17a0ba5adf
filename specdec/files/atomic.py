"""Files that appear only when they are whole."""

from contextlib import suppress
from pathlib import Path

from specdec.errors import SpecError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears only when it is whole. Raises SpecError where it cannot be written."""
    scratch = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise SpecError(f"{path}: cannot be written: {error.strerror or error}") from error
