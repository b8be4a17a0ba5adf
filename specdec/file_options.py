"""Options of parts that name a file: a path starts at the folder of the spec, or else here."""

from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo

from specdec.paths import expanded, is_file, is_folder


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
