"""A head with what it brings, and how its folder is written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.files.atomic import whole_file, write_whole
from specdec.heads.architectures import AnyConfig, AnyHead
from specdec.heads.config import HeadConfig

EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class HeadCheckpoint:
    """A head, and what it brings beside its own parameters.

    draft_ids: [drafts] int64, the target id of each column of the LM head; None: all ids.
    embedding [vocab, hidden], lm_head [drafts, hidden]: None where the target shares them.
    """

    head: AnyHead
    draft_ids: Tensor | None = None
    embedding: Tensor | None = None
    lm_head: Tensor | None = None

    @property
    def config(self) -> AnyConfig:
        """What the head is."""
        return self.head.config


def tensors_of(checkpoint: HeadCheckpoint) -> dict[str, Tensor]:
    """The parameters of the head itself, on the CPU."""
    return {name: tensor.detach().cpu() for name, tensor in checkpoint.head.state_dict().items()}


def scaled(tensor: Tensor, scale: float) -> Tensor:
    """Times a scale, rounded once."""
    return tensor if scale == 1.0 else (tensor.double() * scale).to(tensor.dtype)


def repeated_lm_head(checkpoint: HeadCheckpoint, lm_head: Tensor | None, heads: int) -> dict[str, Tensor]:
    """The LM head that heads of one depth each borrow, once for each of them; none where they have their own.

    lm_head: [drafts, hidden] the target's. Raises CheckpointError where it is needed and missing, or of another width.
    """
    config = checkpoint.config
    if config.own_lm_head:
        return {}
    shared = checkpoint.lm_head if checkpoint.lm_head is not None else lm_head
    if shared is None:
        raise CheckpointError("the heads borrow the target's LM head, which the layout writes out: give the target")
    if shared.shape[1] != config.hidden_size:
        raise CheckpointError(f"the LM head is {shared.shape[1]} wide; the heads are {config.hidden_size}")
    dtype = next(checkpoint.head.parameters()).dtype
    return {f"lm_heads.{head}.weight": shared.to(dtype).cpu().clone() for head in range(heads)}


def check_shapes(tensors: Mapping[str, tuple[Tensor | None, int]], config: HeadConfig) -> None:
    """Raise CheckpointError for a tensor that has not so many rows of the head's width, or is none of numbers with a point."""
    for name, (tensor, rows) in tensors.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != (rows, config.hidden_size) or not tensor.is_floating_point():
            got = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise CheckpointError(f"{name} is {got}, expected floating-point numbers {(rows, config.hidden_size)}")


def write_folder(
    folder: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor], *, weights: str = "model.safetensors"
) -> None:
    """Weights first and under another name, so that a folder with both files is whole."""
    with whole_file(folder / weights) as scratch:
        save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, scratch, metadata={"format": "pt"})
        write_whole(folder / "config.json", json.dumps(data, indent=2) + "\n")
