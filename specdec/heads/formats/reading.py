"""Reading a draft head's folder: every tensor is accounted for, and none is ever made up."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.heads.architectures import AnyConfig, new_head
from specdec.heads.block import BlockConfig
from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.formats.checkpoint import EMBEDDING, LM_HEAD, HeadCheckpoint
from specdec.heads.formats.config_file import ConfigFile, head_config, read_config
from specdec.heads.formats.hydra import renamed_hydra
from specdec.heads.formats.hydra import spelling as hydra_spelling
from specdec.heads.formats.medusa import renamed_medusa
from specdec.heads.formats.medusa import spelling as medusa_spelling
from specdec.heads.formats.tensors import assembled, check_numbers, draft_ids, read_tensors, refuse
from specdec.heads.hydra import HydraConfig
from specdec.heads.medusa import MedusaConfig

MAPS = ("draft_ids", "d2t", "t2d")


def read_head(
    folder: Path,
    *,
    config_file: ConfigFile | None = None,
    layers: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> HeadCheckpoint:
    """The head in `folder`, for inference.

    Embeddings are the target's where the file has none; so is the LM head of an EAGLE-1 head that does not own one.

    Args:
        folder: Where its config.json and its weights are.
        config_file: Its config.json, where that has been read already.
        layers: As in `head_config`.
        dtype: None keeps the file's.
        device: None: the CPU.

    Raises:
        CheckpointError: For anything else that is missing, superfluous or misshapen, with all names.
    """
    file = read_config(folder) if config_file is None else config_file
    config = head_config(file, layers)
    tensors = _named_tensors(file, config)
    check_numbers(folder, {name: tensor for name, tensor in tensors.items() if name not in MAPS})
    maps = {name: tensors.pop(name) for name in MAPS if name in tensors}
    cast = {name: tensor.to(device=device, dtype=dtype or tensor.dtype) for name, tensor in tensors.items()}
    with torch.device("meta"):
        head = new_head(config)
    embedding = cast.pop(EMBEDDING, None) if isinstance(config, HeadConfig) else None
    lm_head = None if config.own_lm_head or LM_HEAD in head.state_dict() else cast.pop(LM_HEAD, None)
    _check_shared(folder, config, embedding, lm_head)
    head = assembled(folder, head, cast, spelled=_spelling(file, config))
    offsets = file.is_published and file.family == "eagle"
    ids = draft_ids(folder, config, maps, published=offsets)
    if isinstance(head, EagleHead | EagleHead3) and head.lm_head is not None:
        lm_head = head.lm_head.weight
    return HeadCheckpoint(head, None if ids is None else ids.to(device), embedding, lm_head)


def _named_tensors(file: ConfigFile, config: AnyConfig) -> dict[str, Tensor]:
    """The tensors by the names that heads have here."""
    tensors = read_tensors(file.folder)
    if isinstance(config, MedusaConfig):
        return renamed_medusa(file.data, tensors) if file.is_published else tensors
    if isinstance(config, HydraConfig):
        return renamed_hydra(file.data, tensors) if file.is_published else tensors
    if isinstance(config, BlockConfig):
        return tensors
    if config.kind == "eagle" and "fc.weight" not in tensors:
        raise CheckpointError(f"{file.folder}: not an EAGLE head: its weights have no fc.weight")
    return {_renamed(name): tensor for name, tensor in tensors.items()} if config.kind == "eagle3" else tensors


def _renamed(name: str) -> str:
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def _spelling(file: ConfigFile, config: AnyConfig) -> Callable[[str], str]:
    """How the folder spells our names, for messages."""
    if not file.is_published or isinstance(config, HeadConfig):
        return str
    return medusa_spelling(file.data, config) if isinstance(config, MedusaConfig) else hydra_spelling(file.data)


def _check_shared(folder: Path, config: AnyConfig, embedding: Tensor | None, lm_head: Tensor | None) -> None:
    """What the target may share, of the right shape where it is there."""
    sizes = {EMBEDDING: (embedding, config.vocab_size), LM_HEAD: (lm_head, config.output_size)}
    misshapen = (
        f"{name} {tuple(tensor.shape)}, expected {(rows, config.hidden_size)}"
        for name, (tensor, rows) in sizes.items()
        if tensor is not None and tuple(tensor.shape) != (rows, config.hidden_size)
    )
    refuse(folder, misshapen=misshapen)
