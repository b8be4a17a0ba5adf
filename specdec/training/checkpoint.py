"""Reading the checkpoint of a run that is resumed, and what may not have changed in its spec."""

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from specdec.errors import CheckpointError, SpecError
from specdec.files.paths import exists, is_file
from specdec.heads.architectures import TrainedConfig, TrainedHead, trainable_head, trained_config_type
from specdec.heads.config import TrainedWith
from specdec.heads.formats.reading import read_head
from specdec.interfaces.target_identity import same_target
from specdec.training.head_spec import HeadSpec
from specdec.training.loop import Trainer
from specdec.training.spec import TrainingSpec

FIXED = ("seed", "tokens_per_batch", "data_seed", "start_from")
"""Beside target, head and optimiser: with others, the weights and their place in the data would mean something else."""

FIXED_DATA = ("held_out_share", "held_out_at_most", "tokens_per_shard", "validate_on", "chat_template_kwargs")
"""What says which conversations are learnt from and which are held out: with others, features would be written over."""

FIXED_SOURCE = ("max_tokens", "temperature")
"""The same of one source."""

KEPT = ("head", "optimizers", "counters", "epoch_shards", "draft_ids")
"""What every checkpoint holds."""

ANEW = "delete checkpoint.pt to start anew, or give another output folder"

NOT_OURS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What torch raises for a state of something else."""


def read_checkpoint(spec: TrainingSpec) -> dict[str, Any] | None:
    """What the run in the spec's output folder left, or None. Raises CheckpointError, or SpecError for another run's."""
    path = spec.output / "checkpoint.pt"
    if not is_file(path):
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch's reader raises whatever bytes that are not its own lead to
        raise CheckpointError(f"{path} cannot be read: {_first_line(error)}; {ANEW}") from error
    lacking = [name for name in KEPT if name not in state] if isinstance(state, dict) else KEPT
    if lacking:
        raise CheckpointError(f"{path} is no checkpoint of a run, it lacks {', '.join(lacking)}; {ANEW}")
    if (before := state.get("spec")) is not None:
        _check_same(path, spec, before)
    return state


def head_as_left(spec: TrainingSpec, state: dict[str, Any]) -> TrainedHead:
    """The head of a checkpoint, its sizes from config.json beside it.

    Where the best head so far is gone, the state forgets how good it was. Raises CheckpointError where files are damaged or
    do not fit each other.
    """
    path = spec.output / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        config = trained_config_type(data.get("kind") if isinstance(data, dict) else None).model_validate(data)
    except ValidationError as error:
        raise CheckpointError(f"{path} does not describe a head: {error.errors()[0]['msg']}; {ANEW}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read, and the run cannot be resumed without it: {error}; {ANEW}") from error
    before = state.get("config")
    changed = (
        [] if before is None else [key for key, value in config.model_dump(mode="json").items() if before.get(key) != value]
    )
    if changed:
        raise CheckpointError(f"{path} is not of the head in checkpoint.pt: {', '.join(changed)} differ; {ANEW}")
    head = trainable_head(config)
    try:
        head.load_state_dict(state["head"])
    except NOT_OURS as error:
        raise CheckpointError(f"{path} is not of the head in checkpoint.pt: {_first_line(error)}; {ANEW}") from error
    _check_best(spec.output / "head", state, config)
    return head


def restored(run: Trainer, state: dict[str, Any]) -> None:
    """Put a run where the checkpoint left it. Raises CheckpointError for one that is not of its head and optimisers."""
    try:
        run.restore(state)
    except NOT_OURS as error:
        path = run.spec.output / "checkpoint.pt"
        raise CheckpointError(f"{path} does not fit the run: {_first_line(error)}; {ANEW}") from error


def _check_best(folder: Path, state: dict[str, Any], config: TrainedConfig) -> None:
    """Look at the best head so far; where it is gone, the best from here on is kept. Raises CheckpointError if damaged."""
    counters = state["counters"]
    if not isinstance(counters, dict) or not counters.get("best_tau"):
        return
    if not exists(folder / "model.safetensors"):
        counters |= {"best_tau": 0.0, "validated_step": None}
        return
    remedy = f"delete {folder} to keep the best head from here on, or give another output folder"
    try:
        found = read_head(folder).config
    except CheckpointError as error:
        raise CheckpointError(f"the best head so far is damaged: {error}; {remedy}") from error
    if found != config:
        raise CheckpointError(f"{folder / 'config.json'} is not of the run's head; {remedy}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"


def check_template(spec: TrainingSpec, before: TrainedWith | None, now: TrainedWith) -> None:
    """Raise SpecError for a run whose conversations were rendered by another chat template."""
    if before is not None and before.chat_template != now.chat_template:
        raise SpecError(
            f"{spec.output / 'checkpoint.pt'} is of another run: the target's chat template was {before.chat_template}, is "
            f"{now.chat_template}; another output folder would work"
        )


def _default(key: str) -> Any:
    """What a run has that was begun before heads had this option."""
    return HeadSpec.model_fields[key].default


def _data_pairs(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, before, now) of what may not change in the data; a key that an older run did not know was at its default."""
    before = {"chat_template_kwargs": {}, **before}
    pairs = [(f"data.{key}", before.get(key, now[key]), now[key]) for key in FIXED_DATA]
    for name, source in now["sources"].items():
        old = before["sources"].get(name, source)
        pairs += [(f"data.sources.{name}.{key}", old.get(key, source[key]), source[key]) for key in FIXED_SOURCE]
    return pairs


def _check_same(path: Path, spec: TrainingSpec, before: dict[str, Any]) -> None:
    now = spec.model_dump(mode="json")
    if not now["head"]["layers"]:
        now["head"]["layers"] = before["head"]["layers"]
    targets = before["target"], now["target"]
    pairs = [
        *((f"target.{key}", *(target[key] for target in targets)) for key in ("use", "revision")),
        *((f"head.{key}", before["head"].get(key, _default(key)), value) for key, value in now["head"].items()),
        *((key, before.get(key, now[key]), now[key]) for key in FIXED),
        *_data_pairs(before["data"], now["data"]),
        ("optimizer.use", before["optimizer"]["use"], now["optimizer"]["use"]),
    ]
    changed = [f"{key} was {old}, is {new}" for key, old, new in pairs if old != new]
    models = [target["model"] for target in targets]
    if None not in models and not same_target(*models):
        changed.insert(0, f"target.model was {models[0]}, is {models[1]}")
    if changed:
        raise SpecError(f"{path} is of another run: {'; '.join(changed)}; another output folder would work")
