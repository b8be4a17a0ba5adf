"""Paths as users write them."""

from pathlib import Path


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
