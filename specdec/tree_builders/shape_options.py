"""The options by which builders name a tree shape."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from specdec.errors import SpecdecError, SpecError
from specdec.files.paths import is_file, starting_folders
from specdec.interfaces.parts import PartOptions
from specdec.trees.tree_file import read_tree
from specdec.trees.tree_shape import RankPath, TreeShape


def _find(name: str, info: ValidationInfo) -> str:
    """The file of a tree name, if whoever validates brings `find_tree` in the context."""
    find: Callable[..., Path] | None = (info.context or {}).get("find_tree")
    if find is None:
        return name
    folders = starting_folders(info)
    try:
        return str(find(name) if folders is None else find(name, folders))
    except SpecdecError as error:
        raise ValueError(str(error)) from error


TreeName: TypeAlias = Annotated[str, AfterValidator(_find), Field(min_length=1, description="a tree file: name or path")]
Paths: TypeAlias = Annotated[tuple[RankPath, ...], Field(min_length=1, description="the shape itself: paths of ranks")]
Widths: TypeAlias = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, description="children of every node, level by level")
]


def one_shape(*, file: str | None, paths: Sequence[Sequence[int]] | None, widths: Sequence[int] | None) -> TreeShape | None:
    """The shape that exactly one of the three gives; None for a `file` that is still a name.

    Raises SpecError for none or several, and for what is wrong with the one.
    """
    given = [name for name, value in (("file", file), ("paths", paths), ("widths", widths)) if value is not None]
    if len(given) != 1:
        raise SpecError(f"a tree needs exactly one of file, paths and widths; got {' and '.join(given) or 'none'}")
    if file is not None:
        return read_tree(Path(file)).shape if is_file(Path(file)) else None
    return TreeShape.of(paths) if paths is not None else TreeShape.k_ary(widths or ())


class ShapeOptions(PartOptions):
    """The shape of a builder's tree: exactly one of file, paths and widths."""

    file: Annotated[TreeName | None, Field(description="a tree file: name or path")] = None
    paths: Annotated[Paths | None, Field(description="the shape itself: paths of ranks")] = None
    widths: Annotated[Widths | None, Field(description="children of every node, level by level")] = None

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        try:
            _ = self.known_shape
        except SpecError as error:
            raise ValueError(str(error)) from error
        return self

    @cached_property
    def known_shape(self) -> TreeShape | None:
        """The shape, its file read once; None for a file that is still a bare name."""
        return one_shape(file=self.file, paths=self.paths, widths=self.widths)

    def shape(self, find_tree: Callable[[str], Path]) -> TreeShape:
        """The shape, its file found and read. Raises SpecError for one that is malformed."""
        known = self.known_shape
        return known if known is not None else read_tree(find_tree(self.file or "")).shape
