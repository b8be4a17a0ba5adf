"""The weights of a checkpoint, all of them and no others: what is missing would decode as noise without a word."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from specdec.errors import CheckpointError
from specdec.files.json_object import read_json_object
from specdec.files.paths import is_file, matching

LISTED = 6
"""Names per fault in a message; of the rest only the number is reported."""

PICKLED = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
FLOATING = frozenset(PICKLED.values())
"""Dtypes of weights that are read as they are; the names are those of safetensors."""

HARMLESS = (".inv_freq", ".masked_bias", ".position_ids")
"""Ends of names of buffers that older checkpoints saved and that models compute themselves."""


def refuse_other_weights(model: str, found: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless the checkpoint held just the weights that the model has.

    found: transformers' loading info. Tied weights count as one; buffers that models compute are no fault.
    """
    surplus = [name for name in found["unexpected_keys"] if not name.endswith(HARMLESS)]
    misshapen = [f"{name} ({_shape(given)} for {_shape(wanted)})" for name, given, wanted in found["mismatched_keys"]]
    faults = [
        f"{fault}: {_listed(names)}"
        for fault, names in (
            ("missing", found["missing_keys"]),
            ("not of this model", surplus),
            ("of another shape", misshapen),
            ("not converted", found["error_msgs"]),
        )
        if names
    ]
    if faults:
        raise CheckpointError(f"the weights of '{model}' are not those of its config.json: {'; '.join(faults)}")


def refuse_other_numbers(model: str, folder: Path, loaded: Any) -> None:
    """Raise CheckpointError for weights that are stored as whole numbers, or in eight bits without the scales to read them.

    They would be cast to the model's dtype without a word. Models that state how they are quantized are let pass.
    """
    if getattr(loaded.config, "quantization_config", None) is not None:
        return
    current = loaded.state_dict()
    strange = []
    for name, dtype in _stored_dtypes(folder):
        ours = current.get(name)
        wanted = name.endswith(".weight") if ours is None else ours.is_floating_point()
        if wanted and dtype not in FLOATING:
            strange.append(f"{name} ({dtype})")
    if strange:
        raise CheckpointError(
            f"weights of '{model}' are no floating-point numbers of 16 bits or more, and its config.json names no "
            f"quantization: {_listed(strange)}"
        )


def _stored_dtypes(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, dtype as the file calls it) of all tensors that transformers reads from the folder; no weights are read."""
    from safetensors import safe_open

    for file in _files_read(folder):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    yield name, opened.get_slice(name).get_dtype()
        else:
            loaded = torch.load(file, map_location="meta", weights_only=True)
            for name, tensor in loaded.items():
                yield name, PICKLED.get(tensor.dtype, str(tensor.dtype))


def _files_read(folder: Path) -> list[Path]:
    """The files of weights that transformers takes: one, else those of an index, in safetensors where there are such."""
    for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin")):
        whole, index = folder / f"{stem}{suffix}", folder / f"{stem}{suffix}.index.json"
        if is_file(whole):
            return [whole]
        if is_file(index):
            names = read_json_object(index).get("weight_map", {}).values()
            return [folder / name for name in sorted(set(names))]
    return []


def unreadable(model: str, folder: Path | None, error: Exception) -> CheckpointError:
    """The fault of weights that cannot be read, with the file where it can be told."""
    if isinstance(error, UnpicklingError):
        return CheckpointError(
            f"'{model}' cannot be loaded: its pickled weights are damaged or hold more than tensors, and unpickling those "
            "could run any code; a checkpoint in safetensors would work"
        )
    damaged = [] if folder is None else [file.name for file in matching(folder, "*.safetensors") if not _opens(file)]
    where = f"{_listed(damaged)} of '{model}' is damaged" if damaged else f"the weights of '{model}' cannot be read"
    lines = str(error).strip().splitlines()
    return CheckpointError(f"{where}: {lines[0] if lines else type(error).__name__}")


def _opens(file: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def _shape(size: torch.Size) -> str:
    return "x".join(map(str, size)) or "scalar"


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
    return ", ".join(ordered[:LISTED]) + more
