"""Starting a run from a head that was trained before: its sizes, its draft vocabulary and its weights."""

from pathlib import Path
from typing import Any

import torch

from specdec.errors import CheckpointError, SpecError
from specdec.heads.architectures import TrainedConfig, TrainedHead, trainable_head
from specdec.heads.checkpoint_path import locate_head
from specdec.heads.config import TrainedWith
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.reading import read_head
from specdec.heads.hydra import HydraConfig
from specdec.training.head_spec import SIZES_OF_LAYERS, HeadSpec
from specdec.training.spec import TrainingSpec

SIZES = {key: key for key in HeadSpec.model_fields if key not in ("kind", "train_lm_head")} | {"train_lm_head": "own_lm_head"}
"""What a spec calls the sizes of a head, and what a head's config calls them."""


def sized_as_started(spec: TrainingSpec) -> TrainingSpec:
    """The spec with the sizes of the head that the run starts from; as it is where the run starts from none.

    Raises SpecError for a size that the spec gives otherwise, and CheckpointError for a head that cannot be read.
    """
    if spec.start_from is None:
        return spec
    config = head_config(read_config(_folder(spec)), spec.head.layers or None)
    if config.kind != spec.head.kind:
        raise SpecError(f"start_from: the head is of kind '{config.kind}'; head: {{kind: {config.kind}}} would work")
    sizes = _sizes(config)
    given = {key: getattr(spec.head, key) for key in spec.head.model_fields_set & sizes.keys()}
    wrong = [f"head.{key}: {value}, where that head has {sizes[key]}" for key, value in given.items() if value != sizes[key]]
    if wrong:
        raise SpecError(f"start_from: {'; '.join(wrong)}; without these keys its own sizes are taken")
    return spec.model_copy(update={"head": spec.head.model_copy(update=sizes)})


def _sizes(config: TrainedConfig) -> dict[str, Any]:
    """A head's sizes by the keys of a spec."""
    sizes = {key: getattr(config, name) for key, name in SIZES.items() if hasattr(config, name)}
    if not isinstance(config, HydraConfig):
        return sizes
    layer = config.prefix
    return {**sizes, "prefix": layer is not None} | ({} if layer is None else {k: getattr(layer, k) for k in SIZES_OF_LAYERS})


def head_to_start_from(spec: TrainingSpec, made_for: tuple[int, int]) -> HeadCheckpoint | None:
    """The head with its draft vocabulary, in float32 on the CPU; None where the run starts from none.

    made_for: hidden size and vocabulary of the target. Raises SpecError for a head of another target, or with embeddings or an
    LM head that it should share with its target, and CheckpointError for files that cannot be read.
    """
    if spec.start_from is None:
        return None
    read = read_head(_folder(spec), layers=spec.head.layers or None, dtype=torch.float32)
    if read.config.made_for != made_for:
        raise SpecError(
            f"start_from: the head was made for a target of (hidden size, vocabulary) {read.config.made_for}; the target "
            f"has {made_for}"
        )
    if isinstance(read.config, HydraConfig) and read.config.lm_head_bias:
        raise SpecError("start_from: the head's LM heads have biases, which are not trained")
    if read.embedding is not None or (read.lm_head is not None and not read.config.own_lm_head):
        raise SpecError("start_from: the head brings embeddings or an LM head of its own, which training takes from the target")
    return read


def continued(read: HeadCheckpoint, made_with: TrainedWith) -> TrainedHead:
    """A head that may be trained, with the weights read. made_with: of the new run."""
    head = trainable_head(read.config.model_copy(update={"trained_with": made_with}))
    head.load_state_dict({name: tensor.detach() for name, tensor in read.head.state_dict().items()})
    return head


def _folder(spec: TrainingSpec) -> Path:
    folder = None if spec.start_from is None else locate_head(spec.start_from, spec.head.kind, download=True)
    if folder is None:
        raise CheckpointError(f"start_from: '{spec.start_from}' is neither a folder nor a hub repository within reach")
    return folder
