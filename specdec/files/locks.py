"""One writer for each output: of two processes that are to write the same file, the second is refused."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specdec.errors import SpecdecWarning, SpecError
from specdec.files.atomic import scratch_files, short_name, writing
from specdec.files.paths import is_device, is_file, is_folder


@contextmanager
def exclusive(path: Path, *, folder: bool = False) -> Iterator[None]:
    """Held by one writer of an output at a time; what writers that were killed have left of it is removed.

    The lock is a file of its own, `.NAME.lock` beside a file and `.lock` in a folder. It stays there, empty: removed, it could
    be held twice. The system lets go of it with the process, however that ends.

    Args:
        path: what is written.
        folder: whether that is a folder, which is made.

    Raises:
        SpecError: another process, or another call in this one, is writing it; or nothing can be written there.
    """
    from filelock import FileLock, Timeout

    if is_device(path):
        yield  # which many may write to
        return
    if is_folder(path) and not folder:
        raise SpecError(f"{path}: is a folder; expected the name of a file to write")
    if is_file(path) and folder:
        raise SpecError(f"{path}: cannot be written to: it is a file, and a folder is to be there")
    with writing(path):
        place = path / ".lock" if folder else path.with_name(f".{short_name(path)}.lock")
        lock = FileLock(place, timeout=0, thread_local=False)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise SpecError(f"{path}: is being written by another process; wait for its end, or give another name") from None
        except NotImplementedError:
            warnings.warn(f"{path}: cannot be locked here; let no other process write it", SpecdecWarning, stacklevel=3)
    try:
        with suppress(OSError):
            for left in scratch_files(path):
                left.unlink()
        yield
    finally:
        lock.release()
