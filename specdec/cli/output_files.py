"""Whether the files that a command is to write can be written, said before anything is measured; and by it alone."""

from collections.abc import Sequence
from pathlib import Path

from specdec.cli.terminal import hold
from specdec.errors import SpecError
from specdec.files.locks import exclusive
from specdec.files.paths import is_folder, is_same


def claim_outputs(output: Path, plot: Path | None = None, *, inputs: Sequence[Path] = ()) -> None:
    """Keep other processes from writing these files until the command ends.

    Raises:
        SpecError: a file that could not be written afterwards, that would replace the other or what is read, or that another
            process is writing.
    """
    check_outputs(output, plot, inputs=inputs)
    for path in (output, *([] if plot is None else [plot])):
        hold(exclusive(path))


def check_outputs(output: Path, plot: Path | None = None, *, inputs: Sequence[Path] = ()) -> None:
    """Raise SpecError for files that could not be written afterwards, or would replace each other or what is read."""
    for path in (output, *([] if plot is None else [plot])):
        if is_folder(path):
            raise SpecError(f"{path}: is a folder; expected the name of a file to write")
        if not is_folder(path.parent):
            raise SpecError(f"{path}: there is no folder {path.parent}")
        keep_inputs(path, inputs)
    if plot is not None:
        check_ending_of(plot)
        if is_same(plot, output):
            raise SpecError(f"{plot}: is --output, too; give the picture another name")


def keep_inputs(output: Path, inputs: Sequence[Path]) -> None:
    """Raise SpecError for an output that would replace what is read."""
    if any(is_same(output, read) for read in inputs):
        raise SpecError(f"{output}: is read, and would be replaced; give another name for what is written")


def check_ending_of(plot: Path) -> None:
    """Raise SpecError unless a picture can be written to this path."""
    from specdec.tree_search.pictures import check_ending

    check_ending(plot)
