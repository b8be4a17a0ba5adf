"""EAGLE's own layout: a LlamaConfig of one layer, read for both generations and written for the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.formats.checkpoint import EMBEDDING, LM_HEAD, HeadCheckpoint, check_shapes, scaled, tensors_of, write_folder
from specdec.heads.formats.llama_layer import layer_config, read_fusion, read_layer, validated


def is_eagle3(data: Mapping[str, Any]) -> bool:
    """Whether a config in this layout is of an EAGLE-3 head."""
    return data.get("draft_vocab_size") is not None or "eagle3" in str(data.get("architectures") or "").lower()


def read_eagle_config(folder: Path, data: Mapping[str, Any], layers: tuple[int, ...] | None) -> HeadConfig:
    """EAGLE's own format: a LlamaConfig of one layer. The key `bias` is about `fc`, and where it is missing there is a bias."""
    _refuse_other_models(folder, data)
    if not is_eagle3(data):
        return validated(folder, {**read_layer(folder, data), "fc_bias": data.get("bias", True)})
    settings = data.get("eagle_config") or {}
    named = data.get("eagle_aux_hidden_state_layer_ids") or settings.get("eagle_aux_hidden_state_layer_ids")
    return validated(folder, {**read_layer(folder, data), **read_fusion(folder, data, named, layers)})


def _refuse_other_models(folder: Path, data: Mapping[str, Any]) -> None:
    layers = data.get("num_hidden_layers")
    if isinstance(layers, int) and layers != 1:
        raise CheckpointError(
            f"{folder}: not an EAGLE head: a model of {layers} layers; a head has one (drafter 'model' takes whole models)"
        )


def write_eagle(folder: Path, checkpoint: HeadCheckpoint, *, max_positions: int) -> None:
    """An EAGLE-1 head as EAGLE and vLLM read it.

    Input scales go into `fc`; a bias of zeros is left out (vLLM reads heads without one only). A reduced vocabulary cannot be
    said in this format: the head then drafts from the target's whole LM head. Raises CheckpointError for a head that the format
    cannot express.
    """
    config, tensors = checkpoint.config, tensors_of(checkpoint)
    if not isinstance(config, HeadConfig) or config.kind != "eagle":
        raise CheckpointError(f"the native EAGLE-1 format takes EAGLE-1 heads; this head is of kind '{config.kind}'")
    if config.inputs is not Inputs.FEATURE_AND_SHIFTED_TOKEN:
        what = f"one with inputs '{config.inputs}'"
        raise CheckpointError(f"the native EAGLE-1 format takes features and shifted tokens; this head is {what}")
    if checkpoint.lm_head is not None and checkpoint.draft_ids is not None:
        raise CheckpointError(
            "the native EAGLE-1 format has no place for an own LM head over a reduced vocabulary; a head that was trained "
            "without train_lm_head, or with draft_vocab_size: null, would work"
        )
    size = config.hidden_size
    weight = tensors["fc.weight"]
    tensors["fc.weight"] = torch.cat(
        (scaled(weight[:, :size], config.embedding_scale), scaled(weight[:, size:], config.feature_scale)), dim=1
    )
    bias = config.fc_bias and bool(tensors["fc.bias"].any())
    if config.fc_bias and not bias:
        del tensors["fc.bias"]
    own = {EMBEDDING: checkpoint.embedding, LM_HEAD: checkpoint.lm_head}
    check_shapes(
        {EMBEDDING: (checkpoint.embedding, config.vocab_size), LM_HEAD: (checkpoint.lm_head, config.output_size)}, config
    )
    tensors |= {name: tensor for name, tensor in own.items() if tensor is not None}
    layer = layer_config(config, max_positions, tensors["fc.weight"].dtype)
    switches = {"bias": bias, "qkv_bias": config.qkv_bias}
    write_folder(folder, {"architectures": ["LlamaForCausalLM"], **layer, **switches}, tensors)
