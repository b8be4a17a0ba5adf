"""Files that appear only when they are whole, and errors of the disk as messages that name the file.

What is not finished stands beside the file under a name of its own, `.NAME.TOKEN.partial`, so that two writers never share one.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specdec.errors import SpecError
from specdec.files.paths import is_device, is_folder, matching

ENDING = ".partial"
NAME_LETTERS = 40
"""Of a file's name in the names of files that belong to it: a whole name could make one that is too long."""

DISK_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EIO)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears only when it is whole. Raises SpecError where it cannot be written."""
    with whole_file(path) as scratch:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write: it becomes `path` at the end of the block, and is removed where the block fails.

    Folders above `path` are made. What is there and is no ordinary file, such as a device, is written to directly. torch.save
    is to be given an open file: with a path it does not say why it fails.

    Raises:
        SpecError: the disk is full, or whatever else keeps the file from being written, with the reason.
    """
    with writing(path):
        if is_folder(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_device(path):
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{short_name(path)}.{uuid.uuid4().hex[:12]}{ENDING}")
        try:
            yield scratch
            scratch.replace(path)
        except BaseException:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the system while `path` is written become a SpecError that names it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SpecError) or (reason := disk_reason(error)) is None:
            raise
        raise SpecError(f"{path}: cannot be written: {reason}") from error


def disk_reason(error: BaseException | None) -> str | None:
    """Why a file cannot be written, where that is the reason: libraries wrap the system's error, or only quote it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.strerror or str(error)
        for code in DISK_CODES:
            if os.strerror(code) in str(error):
                return os.strerror(code)
        error = error.__cause__ or error.__context__
    return None


def scratch_files(path: Path) -> list[Path]:
    """What writers of a file, or of any file in a folder, that were killed have left."""
    if is_folder(path):
        return matching(path, f".*{ENDING}")
    start = f".{short_name(path)}."
    found = [left for left in matching(path.parent, f".*{ENDING}") if left.name.startswith(start)]
    return [left for left in found if "." not in left.name[len(start) : -len(ENDING)]]


def short_name(path: Path) -> str:
    """The file's name for names of files that belong to it; a long one is cut, and told from others by its hash."""
    if len(path.name) <= NAME_LETTERS:
        return path.name
    return f"{path.name[:NAME_LETTERS]}-{hashlib.sha256(path.name.encode(errors='surrogateescape')).hexdigest()[:12]}"
