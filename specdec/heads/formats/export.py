"""Writing heads in formats that other engines read: EAGLE's own, and speculators' eagle3."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.files.atomic import whole_file, write_whole
from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.formats.checkpoint import EMBEDDING, LM_HEAD, HeadCheckpoint

VERSION = "0.9.0"
"""Of the speculators format."""


def write_eagle(folder: Path, checkpoint: HeadCheckpoint, *, max_positions: int) -> None:
    """An EAGLE-1 head as EAGLE and vLLM read it.

    Input scales go into `fc`; a bias of zeros is left out (vLLM reads heads without one only). A reduced vocabulary cannot be
    said in this format: the head then drafts from the target's whole LM head. Raises CheckpointError for a head that the format
    cannot express.
    """
    config, tensors = checkpoint.config, _tensors(checkpoint)
    if config.kind != "eagle" or config.inputs is not Inputs.FEATURE_AND_SHIFTED_TOKEN:
        what = "of kind 'eagle3'" if config.kind == "eagle3" else f"one with inputs '{config.inputs}'"
        raise CheckpointError(f"the native EAGLE-1 format takes features and shifted tokens; this head is {what}")
    if checkpoint.lm_head is not None and checkpoint.draft_ids is not None:
        raise CheckpointError(
            "the native EAGLE-1 format has no place for an own LM head over a reduced vocabulary; a head that was trained "
            "without train_lm_head, or with draft_vocab_size: null, would work"
        )
    size = config.hidden_size
    weight = tensors["fc.weight"]
    tensors["fc.weight"] = torch.cat(
        (_scaled(weight[:, :size], config.embedding_scale), _scaled(weight[:, size:], config.feature_scale)), dim=1
    )
    bias = config.fc_bias and bool(tensors["fc.bias"].any())
    if config.fc_bias and not bias:
        del tensors["fc.bias"]
    own = {EMBEDDING: checkpoint.embedding, LM_HEAD: checkpoint.lm_head}
    _check_shapes(
        {EMBEDDING: (checkpoint.embedding, config.vocab_size), LM_HEAD: (checkpoint.lm_head, config.output_size)}, config
    )
    tensors |= {name: tensor for name, tensor in own.items() if tensor is not None}
    layer = _layer_config(config, max_positions, tensors["fc.weight"].dtype)
    switches = {"bias": bias, "qkv_bias": config.qkv_bias}
    _write(folder, {"architectures": ["LlamaForCausalLM"], **layer, **switches}, tensors)


def write_speculators(
    folder: Path,
    checkpoint: HeadCheckpoint,
    *,
    target: str,
    max_positions: int,
    embedding: Tensor | None = None,
    drafts: int = 5,
) -> None:
    """An EAGLE-3 head in the speculators format, as vLLM serves it.

    target: path or hub id of the model that it drafts for. embedding: [vocab, hidden] the target's, needed where the head
    scales them, since the format cannot say so: they are written scaled. drafts: tokens a step that a server starts with.
    """
    config, tensors = checkpoint.config, _tensors(checkpoint)
    if config.kind != "eagle3" or config.qkv_bias:
        raise CheckpointError("the speculators format takes EAGLE-3 heads without biases")
    own = checkpoint.embedding if checkpoint.embedding is not None else embedding
    _check_shapes({EMBEDDING: (own, config.vocab_size)}, config)
    if config.embedding_scale != 1.0 and own is None:
        raise CheckpointError("the head scales its embeddings, which the format cannot say: give the target's embeddings")
    if own is not None and (checkpoint.embedding is not None or config.embedding_scale != 1.0):
        tensors[EMBEDDING] = _scaled(own.to(tensors["fc.weight"]), config.embedding_scale)
    tensors["fc.weight"] = _scaled(tensors["fc.weight"], config.feature_scale)
    renamed = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in tensors.items()}
    data = _speculators_config(config, target, max_positions, drafts, tensors["fc.weight"].dtype)
    _write(folder, data, {**renamed, **_maps(config, checkpoint.draft_ids)})


def _check_shapes(tensors: Mapping[str, tuple[Tensor | None, int]], config: HeadConfig) -> None:
    """Raise CheckpointError for a tensor that has not so many rows of the head's width, or is none of numbers with a point."""
    for name, (tensor, rows) in tensors.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != (rows, config.hidden_size) or not tensor.is_floating_point():
            got = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise CheckpointError(f"{name} is {got}, expected floating-point numbers {(rows, config.hidden_size)}")


def _maps(config: HeadConfig, draft_ids: Tensor | None) -> dict[str, Tensor]:
    """`d2t`, the offset from a draft id to its target id, and `t2d`, whether a target id can be drafted."""
    if draft_ids is None:
        return {}
    ids = draft_ids.cpu()
    drafted = torch.zeros(config.vocab_size, dtype=torch.bool)
    drafted[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}


def _speculators_config(
    config: HeadConfig, target: str, max_positions: int, drafts: int, dtype: torch.dtype
) -> Mapping[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": drafts, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": config.output_size,
        "target_hidden_size": config.hidden_size if config.target_hidden_size is None else config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": list(config.layers),
        "transformer_layer_config": _layer_config(config, max_positions, dtype),
    }


def _layer_config(config: HeadConfig, max_positions: int, dtype: torch.dtype) -> dict[str, Any]:
    """A LlamaConfig of one layer, its rotary positions in the old and the new layout."""
    kind, settings = _rope_scaling(config)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {
        "model_type": "llama",
        **{name: getattr(config, name) for name in names},
        "num_hidden_layers": 1,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if kind == "default" else {"type" if kind == "linear" else "rope_type": kind, **settings},
        "rope_parameters": {"rope_type": kind, **settings, "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _rope_scaling(config: HeadConfig) -> tuple[str, dict[str, Any]]:
    """The kind of scaling and its settings. EAGLE's own reader takes exactly `type` and `factor` for a linear one."""
    scaling = dict(config.rope_scaling or {})
    older = scaling.pop("type", "default")
    return scaling.pop("rope_type", older), scaling


def _tensors(checkpoint: HeadCheckpoint) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in checkpoint.head.state_dict().items()}


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    """Times a scale, rounded once."""
    return tensor if scale == 1.0 else (tensor.double() * scale).to(tensor.dtype)


def _write(folder: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Weights first and under another name, so that a folder with both files is whole."""
    with whole_file(folder / "model.safetensors") as scratch:
        save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, scratch, metadata={"format": "pt"})
        write_whole(folder / "config.json", json.dumps(data, indent=2) + "\n")
