"""A folder that is written once, recorded file by file, and compared with its record whenever it is used again."""

import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specdec.errors import CheckpointError, SpecdecWarning, SpecError
from specdec.files.atomic import disk_reason, write_whole
from specdec.files.paths import exists, is_file, is_folder, matching

RECORD = "unpacked.json"
SCRATCH = ".unpacking-"
LOCK = ".unpacking.lock"
ELSEWHERE = "set SPECDEC_CACHE to another folder, with room for it"
LISTED = 3
"""Changed files in a message."""

_Entry = Mapping[str, Any]


def unpacked(folder: Path, write: Callable[[Path], None], *, hashes: bool = False) -> Path:
    """The folder, written by `write` where it is missing or no longer what was written.

    Sizes and times of its files are compared with the record; hashes where only a time differs, or everywhere on request.
    Of several processes one writes, and the others wait for it. A folder without a record is written again.

    Args:
        folder: where the files belong.
        write: fills a new, empty folder.
        hashes: read every file, which takes a second per gigabyte.

    Raises:
        CheckpointError: where the folder cannot be written or repaired, with the reason.
    """
    if is_folder(folder) and not changed_files(folder, hashes=hashes):
        _sweep(folder.parent)
        return folder
    with _exclusive(folder):
        there = is_folder(folder)
        changed = changed_files(folder, hashes=hashes) if there else []
        if there and not changed:
            return folder
        if changed and is_file(folder / RECORD):
            more = f" and {len(changed) - LISTED} more" if len(changed) > LISTED else ""
            what = ", ".join(changed[:LISTED]) + more
            warnings.warn(f"{folder} was changed since it was unpacked ({what}); unpacking again", SpecdecWarning, stacklevel=2)
        _write_again(folder, write)
    return folder


def changed_files(folder: Path, *, hashes: bool = False) -> list[str]:
    """Names of files that are missing, added, or no longer what the record says; the record's own name if there is none."""
    try:
        recorded: Mapping[str, _Entry] = json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]
        found = {path.name: path for path in folder.iterdir() if not path.name.startswith(".") and path.name != RECORD}
        if not recorded:
            return [RECORD]
        retimed = []
        changed = sorted(recorded.keys() ^ found.keys())
        for name in sorted(recorded.keys() & found.keys()):
            entry, status = recorded[name], found[name].stat()
            same_time = status.st_mtime_ns == entry["mtime_ns"]
            if status.st_size != entry["size"] or ((hashes or not same_time) and _hash(found[name]) != entry["sha256"]):
                changed.append(name)
            elif not same_time:
                retimed.append(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [RECORD]
    if retimed and not changed:
        # The next comparison then needs no hashes.
        with suppress(SpecError, OSError):
            _write_record(folder, {n: {**e, "mtime_ns": found[n].stat().st_mtime_ns} for n, e in recorded.items()})
    return changed


def _sweep(root: Path) -> None:
    """Delete what interrupted unpackings left behind, unless one is under way."""
    if matching(root, f"{SCRATCH}*"):
        from filelock import FileLock, Timeout

        with suppress(OSError, Timeout), FileLock(root / LOCK, timeout=0, thread_local=False):
            _delete_scratch(root)


def _delete_scratch(root: Path) -> None:
    for left in matching(root, f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def _write_again(folder: Path, write: Callable[[Path], None]) -> None:
    """Write to a folder beside it and rename, so that an interrupted run leaves nothing that looks complete."""
    try:
        _delete_scratch(folder.parent)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            write(fresh)
            _write_record(fresh, {path.name: _entry(path) for path in sorted(fresh.iterdir())})
            if exists(folder):
                folder.rename(Path(scratch) / "old")
            fresh.rename(folder)
    except Exception as error:
        if (reason := disk_reason(error)) is None:
            raise
        hint = f"delete {folder} by hand, or " if exists(folder) else ""
        raise CheckpointError(f"the model cannot be unpacked to {folder}: {reason}; {hint}{ELSEWHERE}") from error


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Held by one process, and by one thread of it, at a time."""
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / LOCK, thread_local=False)
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"the model cannot be unpacked to {folder}: {reason}; {ELSEWHERE}") from error
    try:
        yield
    finally:
        lock.release()


def _entry(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _hash(path)}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_record(folder: Path, files: Mapping[str, _Entry]) -> None:
    write_whole(folder / RECORD, json.dumps({"files": files}, indent=2) + "\n")
