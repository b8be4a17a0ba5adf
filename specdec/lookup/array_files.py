"""Files of integer and float arrays, in the safetensors format, that say what they hold and for which vocabulary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from specdec.errors import SpecError
from specdec.files.atomic import write_whole

Array = NDArray[Any]


def write_arrays(path: Path, arrays: Mapping[str, Array], *, kind: str, vocabulary: str | None) -> None:
    """Write the file that `read_arrays` reads back; it appears only when it is whole."""
    metadata = {"kind": kind} if vocabulary is None else {"kind": kind, "vocabulary": vocabulary}
    write_whole(path, save({name: numpy.ascontiguousarray(array) for name, array in arrays.items()}, metadata=metadata))


def read_arrays(path: Path, dtypes: Mapping[str, str], *, kind: str) -> tuple[dict[str, Array], str | None]:
    """The arrays of these names, and the fingerprint of their vocabulary.

    dtypes: by name, what is written there. Raises SpecError for a file without them, or with arrays of other numbers.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != kind:
                got = metadata.get("kind", "something else")
                raise SpecError(f"{path}: holds {got}, expected a {kind}")
            arrays = {name: file.get_tensor(name) for name in dtypes}
            vocabulary = metadata.get("vocabulary")
    except (OSError, SafetensorError) as error:
        raise SpecError(f"{path}: not a {kind}: {error}") from error
    for name, array in arrays.items():
        if array.dtype != dtypes[name]:
            raise SpecError(f"{path}: the {kind} is damaged: {name} holds {array.dtype}, expected {dtypes[name]}")
    return arrays, vocabulary
