"""Paths as users write them, and options of parts that name a file: a path starts at the folder of the spec, or else here."""

from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo


def expanded(name: str | Path) -> Path:
    """With `~` followed, where it leads anywhere."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


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


def _find(name: str, info: ValidationInfo) -> str:
    """The file itself, if whoever validates brings the spec's `folder` in the context."""
    near: Path | None = (info.context or {}).get("folder")
    if near is None:
        return name
    paths = [folder / expanded(name) for folder in (near, Path())]
    for path in paths:
        if is_file(path):
            return str(path)
    raise ValueError(f"{name}: {'a folder, not a file' if any(map(is_folder, paths)) else 'no such file'}")


DataFile: TypeAlias = Annotated[str, AfterValidator(_find), Field(min_length=1)]
