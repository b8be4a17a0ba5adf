"""Whether a run's files can be where its spec says, before anything is loaded."""

from pathlib import Path

from specdec.errors import SpecError
from specdec.training.spec import TrainingSpec

FILES = ("log.jsonl", "checkpoint.pt", "config.json")
"""What a run writes into its output folder, beside `head`."""


def check_places(spec: TrainingSpec) -> None:
    """Raise SpecError where a folder is to be and a file is, or the other way round."""
    for name, folder in (("features", spec.features), ("output", spec.output), ("output", spec.output / "head")):
        if (other := _no_folder(folder)) is not None:
            raise SpecError(f"{name}: {other} is a file, and a folder is to be there; give another name")
    for name in FILES:
        if (spec.output / name).is_dir():
            raise SpecError(f"output: {spec.output / name} is a folder, and a file is to be written there; give another name")


def _no_folder(path: Path) -> Path | None:
    """What is there, of the path or a folder above it, and is no folder."""
    there = next((place for place in (path, *path.parents) if place.exists()), None)
    return None if there is None or there.is_dir() else there
