"""DFlash's own layout of one-pass heads, which JetSpec shares, and DSpark with its bias: read and written.

A layer id names the output of a layer there, and the input of the next one here. *Source: z-lab/dflash, hao-ai-lab/JetSpec and
deepseek-ai/DeepSpec, as published.*
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.errors import CheckpointError
from specdec.heads.block import BlockConfig, BlockHead
from specdec.heads.formats.checkpoint import HeadCheckpoint, tensors_of, write_folder
from specdec.heads.formats.llama_layer import read_layer, validated_as

Shapes = Mapping[str, tuple[int, ...]]

NOT_COMPUTED = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""Of DFlash 2: a convolution before the block, and a selector of paths."""


def is_dflash(data: Mapping[str, Any]) -> bool:
    """Whether a config is of a published one-pass head."""
    return isinstance(data.get("dflash_config"), Mapping)


def read_dflash_config(folder: Path, data: Mapping[str, Any], published: Shapes) -> BlockConfig:
    """The config of a published head. published: shapes of its tensors, from which come sizes that the config leaves out."""
    own = data["dflash_config"]
    both = {**data, **own}
    if on := [f"{key}: {both[key]!r}" for key in NOT_COMPUTED if both.get(key)]:
        raise CheckpointError(f"{folder}: the head needs what is not supported: {', '.join(on)}")
    if both.get("markov_rank") and both.get("markov_head_type", "vanilla") != "vanilla":
        raise CheckpointError(f"{folder}: markov_head_type: {both['markov_head_type']!r}; 'vanilla' would work")
    width = data.get("target_hidden_size") or data.get("hidden_size")
    sizes = {
        **read_layer(folder, data),
        "layers": [number + 1 for number in _layer_ids(folder, own, data, published, width)],
        "num_layers": data.get("num_hidden_layers", 1),
        "block_size": both.get("block_size"),
        "mask_token_id": own.get("mask_token_id"),
        "causal": bool(own.get("causal_head", False)),
        "from_anchor": bool(both.get("sample_from_anchor", False)),
        "qk_norm": "layers.0.self_attn.q_norm.weight" in published,
        "markov_rank": both.get("markov_rank") or None,
        "target_hidden_size": data.get("target_hidden_size"),
    }
    return validated_as(BlockConfig, folder, sizes)


def _layer_ids(
    folder: Path, own: Mapping[str, Any], data: Mapping[str, Any], published: Shapes, width: int | None
) -> list[int]:
    """Those that the config names, else as many as `fc` reads, spread evenly."""
    named = own.get("target_layer_ids")
    if named is not None:
        return list(named)
    depth, fused = data.get("num_target_layers"), published.get("fc.weight")
    if not depth or not width or fused is None:
        raise CheckpointError(f"{folder}: config.json names neither dflash_config.target_layer_ids nor num_target_layers")
    return default_layer_ids(depth, fused[1] // width)


def default_layer_ids(num_target_layers: int, count: int) -> list[int]:
    """As published: evenly from the second layer to the fourth last, or the middle one alone."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + place * (num_target_layers - 4) / (count - 1)) for place in range(count)]


def write_dflash(folder: Path, checkpoint: HeadCheckpoint, *, max_positions: int) -> None:
    """A one-pass head in DFlash's layout. Raises CheckpointError for a head that the layout cannot express."""
    head = checkpoint.head
    if not isinstance(head, BlockHead):
        raise CheckpointError(f"DFlash's layout takes one-pass heads; this head is of kind '{checkpoint.config.kind}'")
    config = head.config
    if checkpoint.draft_ids is not None or 0 in config.layers:
        raise CheckpointError("DFlash's layout has no place for a reduced vocabulary, or for the target's embeddings")
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    fixed = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [layer - 1 for layer in config.layers],
        "causal_head": config.causal,
    }
    data: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(config, name) for name in names},
        "num_hidden_layers": config.num_layers,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "attention_bias": False,
        "hidden_act": "silu",
        "block_size": config.block_size,
        "target_hidden_size": config.target_hidden_size,
        "dflash_config": fixed,
    }
    if config.from_anchor or config.markov_rank:
        data |= {"sample_from_anchor": config.from_anchor, "markov_rank": config.markov_rank, "markov_head_type": "vanilla"}
    write_folder(folder, data, tensors_of(checkpoint))
