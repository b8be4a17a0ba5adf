"""Whether the files that a command is to write can be written, said before anything is measured."""

from collections.abc import Sequence
from pathlib import Path

from specdec.errors import SpecError


def check_outputs(output: Path, plot: Path | None = None, *, inputs: Sequence[Path] = ()) -> None:
    """Raise SpecError for files that could not be written afterwards, or would replace each other or what is read."""
    for path in (output, *([] if plot is None else [plot])):
        if path.is_dir():
            raise SpecError(f"{path}: is a folder; expected the name of a file to write")
        if not path.parent.is_dir():
            raise SpecError(f"{path}: there is no folder {path.parent}")
        keep_inputs(path, inputs)
    if plot is not None:
        from specdec.tree_search.pictures import check_ending

        check_ending(plot)
        if plot.resolve() == output.resolve():
            raise SpecError(f"{plot}: is --output, too; give the picture another name")


def keep_inputs(output: Path, inputs: Sequence[Path]) -> None:
    """Raise SpecError for an output that would replace what is read."""
    if output.resolve() in {read.resolve() for read in inputs}:
        raise SpecError(f"{output}: is read, and would be replaced; give another name for what is written")
