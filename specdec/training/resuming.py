"""Reading the checkpoint of a run that goes on, and what may not have changed in its spec."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from specdec.errors import CheckpointError, SpecError
from specdec.training.spec import TrainingSpec

FIXED = ("seed", "tokens_per_batch")
"""Beside head and optimiser: with others, the checkpoint's weights and its place in the data would mean something else."""


def read_checkpoint(spec: TrainingSpec) -> dict[str, Any] | None:
    """What the run in the spec's output folder left, or None. Raises CheckpointError, or SpecError for another run's."""
    path = spec.output / "checkpoint.pt"
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if (before := state.get("spec")) is not None:
        _check_same(path, spec, before)
    return state


def _check_same(path: Path, spec: TrainingSpec, before: dict[str, Any]) -> None:
    now = spec.model_dump(mode="json")
    if not now["head"]["layers"]:
        now["head"]["layers"] = before["head"]["layers"]
    pairs = [
        *((f"head.{key}", before["head"].get(key), value) for key, value in now["head"].items()),
        *((key, before[key], now[key]) for key in FIXED),
        ("optimizer.use", before["optimizer"]["use"], now["optimizer"]["use"]),
    ]
    changed = [f"{key} was {old}, is {new}" for key, old, new in pairs if old != new]
    if changed:
        raise SpecError(f"{path} is of another run: {'; '.join(changed)}; another output folder would work")
