"""Medusa's layouts: its authors' own, and vLLM's. Both are read and written.

The authors' config names no sizes, and may name too few heads: they are counted in the weights.
*Source: FasterDecoding/Medusa and vLLM 0.32, as published.*
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.heads.formats.checkpoint import LM_HEAD, HeadCheckpoint, repeated_lm_head, tensors_of, write_folder
from specdec.heads.formats.llama_layer import validated_as
from specdec.heads.medusa import MedusaConfig, MedusaHead

Shapes = Mapping[str, tuple[int, ...]]

AUTHORS_BLOCK = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.linear\.(weight|bias)")
AUTHORS_LM_HEAD = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.weight")
VLLM_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
OUR_BLOCK = re.compile(r"heads\.(\d+)\.(\d+)\.linear\.weight")


def is_medusa(data: Mapping[str, Any]) -> bool:
    """Whether a config is of a published Medusa head."""
    return "medusa_num_heads" in data or data.get("model_type") == "medusa"


def is_vllm(data: Mapping[str, Any]) -> bool:
    """Whether it is in vLLM's layout."""
    return data.get("model_type") == "medusa"


def medusa_name(name: str, *, shares_lm_head: bool = False) -> str:
    """The name that a published tensor has here; one that is not known stays as it is."""
    if found := AUTHORS_BLOCK.fullmatch(name) or VLLM_BLOCK.fullmatch(name):
        head, block, kind = found.groups()
        return f"heads.{head}.{block}.linear.{kind}"
    if found := AUTHORS_LM_HEAD.fullmatch(name):
        return f"lm_heads.{found.group(1)}.weight"
    if shares_lm_head and name == "lm_heads.0.weight":
        return LM_HEAD
    return "draft_ids" if name == "token_map" else name


def authors_name(name: str, num_blocks: int) -> str:
    """A tensor's name in the authors' layout."""
    if name.startswith("heads."):
        return name.removeprefix("heads.")
    if name.startswith("lm_heads."):
        return f"{name.split('.')[1]}.{num_blocks}.weight"
    return name


def vllm_name(name: str) -> str:
    """A tensor's name in vLLM's layout."""
    if name.startswith("heads."):
        _, head, block, _, kind = name.split(".")
        return f"blocks.{head}.layers.{block}.{kind}"
    return "token_map" if name == "draft_ids" else name


def spelling(data: Mapping[str, Any], config: MedusaConfig) -> Callable[[str], str]:
    """From our names of tensors to those of a published folder."""
    return vllm_name if is_vllm(data) else lambda name: authors_name(name, config.num_blocks)


def read_medusa_config(folder: Path, data: Mapping[str, Any], published: Shapes) -> MedusaConfig:
    """The config of a published head. published: shapes of its tensors, by their names there."""
    shares = bool(data.get("original_lm_head", False))
    shapes = {medusa_name(name, shares_lm_head=shares): shape for name, shape in published.items()}
    blocks = [tuple(map(int, found.groups())) for name in shapes if (found := OUR_BLOCK.fullmatch(name))]
    if not blocks:
        raise CheckpointError(f"{folder}: not a Medusa head: its weights have no residual block, such as 0.0.linear.weight")
    if data.get("logit_scale", 1.0) != 1.0:
        raise CheckpointError(f"{folder}: the head needs what is not supported: logit_scale: {data['logit_scale']!r}")
    lm_head = shapes.get(LM_HEAD if shares else "lm_heads.0.weight", (None,))
    vocab_size = data.get("vocab_size") or lm_head[0]
    if vocab_size is None:
        raise CheckpointError(f"{folder}: the weights have no LM head, and config.json no vocab_size")
    drafted = shapes.get("draft_ids", (vocab_size,))[0]
    if (data.get("truncated_vocab_size") or vocab_size) < vocab_size and "draft_ids" not in shapes:
        raise CheckpointError(f"{folder}: the weights do not fit config.json; missing: token_map")
    sizes = {
        "hidden_size": data.get("hidden_size") or shapes["heads.0.0.linear.weight"][-1],
        "num_heads": 1 + max(head for head, _ in blocks),
        "num_blocks": 1 + max(block for _, block in blocks),
        "vocab_size": vocab_size,
        "draft_vocab_size": None if drafted == vocab_size else drafted,
        "bias": _has_bias(data),
        "own_lm_head": not shares,
    }
    return validated_as(MedusaConfig, folder, sizes)


def _has_bias(data: Mapping[str, Any]) -> bool:
    """VLLM's blocks have none unless its config says so; the authors' always have one."""
    return bool(data.get("medusa_fc_bias", False)) if is_vllm(data) else True


def write_authors_medusa(folder: Path, checkpoint: HeadCheckpoint, *, target: str, lm_head: Tensor | None = None) -> None:
    """Medusa heads in their authors' layout: every head with an LM head over the whole vocabulary.

    target: path or hub id of the model that they draft for. lm_head: [vocab, hidden] the target's, where the heads borrow it.
    Raises CheckpointError for heads that the layout cannot express.
    """
    head = _medusa(checkpoint)
    config = head.config
    if config.own_lm_head and checkpoint.draft_ids is not None:
        raise CheckpointError("the authors' layout has no place for a reduced vocabulary of the heads' own; 'vllm' would work")
    tensors = tensors_of(checkpoint) | repeated_lm_head(checkpoint, lm_head, config.num_heads)
    if not config.bias:
        blocks = [name for name in tensors if name.endswith("linear.weight")]
        tensors |= {f"{name.removesuffix('weight')}bias": torch.zeros_like(tensors[name][0]) for name in blocks}
    named = {authors_name(name, config.num_blocks): tensor for name, tensor in tensors.items()}
    sizes = {"medusa_num_heads": config.num_heads, "medusa_num_layers": config.num_blocks}
    data = {**sizes, "base_model_name_or_path": target, "version": "2"}
    write_folder(folder, data, named, weights="medusa_lm_head.safetensors")


def write_vllm_medusa(folder: Path, checkpoint: HeadCheckpoint, *, lm_head: Tensor | None = None) -> None:
    """Medusa heads as vLLM reads them; arguments and errors as of `write_authors_medusa`."""
    head = _medusa(checkpoint)
    config, ids = head.config, checkpoint.draft_ids
    rows = lm_head if ids is None or lm_head is None else lm_head[ids.to(lm_head.device)]
    tensors = tensors_of(checkpoint) | repeated_lm_head(checkpoint, rows, config.num_heads)
    data = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_blocks,
        "truncated_vocab_size": config.output_size,
        "original_lm_head": False,
        "medusa_fc_bias": config.bias,
    }
    maps = {} if ids is None else {"draft_ids": ids.cpu()}
    write_folder(folder, data, {vllm_name(name): tensor for name, tensor in {**tensors, **maps}.items()})


def _medusa(checkpoint: HeadCheckpoint) -> MedusaHead:
    if not isinstance(checkpoint.head, MedusaHead):
        raise CheckpointError(f"Medusa's layouts take Medusa heads; this head is of kind '{checkpoint.config.kind}'")
    return checkpoint.head


def has_shared_lm_head(data: Mapping[str, Any]) -> bool:
    """Whether a published config says that all heads read one LM head, which the file holds once."""
    return bool(data.get("original_lm_head", False))


def renamed_medusa(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published head's tensors by our names; of an LM head over more tokens than are drafted, the drafted rows."""
    named = {medusa_name(name, shares_lm_head=has_shared_lm_head(data)): tensor for name, tensor in tensors.items()}
    ids = named.get("draft_ids")
    if ids is None or ids.is_floating_point():
        return named
    known = int(ids.max()) if len(ids) else 0
    return {
        name: tensor[ids.to(torch.int64)] if "lm_head" in name and known < len(tensor) > len(ids) else tensor
        for name, tensor in named.items()
    }
