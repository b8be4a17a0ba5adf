"""Paths as users write them, and options of parts that name a file or a folder.

A path starts at the folder of the file that it is written in, else at that of the spec, else here.
Nothing else asks the system whether a path is there or where it leads, since for some names it answers with errors of its
own: an unknown user's home, a name of 5,000 letters, a NUL, a link to itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo


def expanded(name: str | Path) -> Path:
    """With `~` followed, where it leads anywhere."""
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError, OSError):
        return Path(name)


def resolved(path: Path) -> Path:
    """Absolute, with links followed; a path that cannot be followed (a link to itself, an impossible name) as it is."""
    try:
        return path.resolve()
    except (RuntimeError, ValueError, OSError):
        return path


def exists(path: Path) -> bool:
    """Whether there is anything; of a name that nothing could have there is nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether it is a file; a name that no file could have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether it is a folder; a name that no folder could have is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_device(path: Path) -> bool:
    """Whether it is there and neither a file nor a folder, such as /dev/null, or a pipe."""
    return exists(path) and not is_file(path) and not is_folder(path)


def matching(folder: Path, pattern: str) -> list[Path]:
    """What is in the folder and matches, sorted; nothing where it is no folder."""
    try:
        return sorted(folder.glob(pattern))
    except (RuntimeError, ValueError, OSError):
        return []


def is_same(one: Path, other: Path) -> bool:
    """Whether both lead to the same file or folder, which need not be there."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return resolved(one) == resolved(other)


def working_folder() -> Path:
    """Absolute, unless it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def from_here(path: Path) -> Path:
    """As messages show it: relative to the working folder where it is inside."""
    here = working_folder()
    return path.relative_to(here) if path.is_relative_to(here) else path


def starting_folders(info: ValidationInfo) -> tuple[Path, ...] | None:
    """Where a path in the option that is validated may start, the likeliest first.

    None unless whoever validates brings `folders` in the context: a function from an option's name to its folders.
    """
    folders: Callable[[str], tuple[Path, ...]] | None = (info.context or {}).get("folders")
    return None if folders is None else folders(info.field_name or "")


def _find(name: str, info: ValidationInfo) -> str:
    folders = starting_folders(info)
    if folders is None:
        return name
    paths = [folder / expanded(name) for folder in folders]
    for path in paths:
        if is_file(path):
            return str(path)
    raise ValueError(f"{name}: {'a folder, not a file' if any(map(is_folder, paths)) else 'no such file'}")


def _find_folder(name: str, info: ValidationInfo) -> str:
    if name == "builtin":
        return name
    paths = [folder / expanded(name) for folder in starting_folders(info) or ()]
    return next((str(path) for path in paths if is_folder(path)), name)


DataFile: TypeAlias = Annotated[str, AfterValidator(_find), Field(min_length=1)]
"""A file that must be there."""

ModelFolder: TypeAlias = Annotated[str, AfterValidator(_find_folder), Field(min_length=1)]
"""A folder, if there is one of this name; else a hub id or a name, left as it is."""
