"""The weights of a checkpoint, all of them and no others: what is missing would decode as noise without a word."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from specdec.errors import CheckpointError
from specdec.files.paths import matching

LISTED = 6
"""Names per fault in a message; of the rest only the number is reported."""

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
