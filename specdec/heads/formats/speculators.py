"""The layout of the speculators library for EAGLE-3 heads, as vLLM serves them: read and written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig
from specdec.heads.formats.checkpoint import EMBEDDING, HeadCheckpoint, check_shapes, scaled, tensors_of, write_folder
from specdec.heads.formats.llama_layer import layer_config, read_fusion, read_layer, refuse_switches, validated

VERSION = "0.9.0"
"""Of the speculators format."""

SPECULATORS_KEYS = frozenset(
    {
        *("architectures", "auto_map", "draft_vocab_size", "dtype", "eagle_aux_hidden_state_layer_ids", "embed_requires_grad"),
        *("fc_norm", "has_no_defaults_at_init", "norm_before_fc", "norm_before_residual", "norm_output", "parallel_drafting"),
        *("speculators_config", "speculators_model_type", "speculators_version", "target_hidden_size", "tie_word_embeddings"),
        *("torch_dtype", "transformer_layer_config", "transformers_version"),
    }
)
"""Keys of speculators' eagle3; a key that is not known may be a rule of the head, so that it is refused."""


def read_speculators_config(folder: Path, data: Mapping[str, Any], layers: tuple[int, ...] | None) -> HeadConfig:
    """The speculators format; `norm_before_residual` is false where it is missing, as its own library reads it."""
    kind = data["speculators_model_type"]
    if kind != "eagle3":
        raise CheckpointError(f"{folder}: not an EAGLE head: a '{kind}' of the speculators format; 'eagle3' would work")
    strangers = sorted(data.keys() - SPECULATORS_KEYS)
    if strangers:
        raise CheckpointError(f"{folder}: keys that are not known and may change the head: {', '.join(strangers)}")
    inner = data.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"{folder}: config.json lacks transformer_layer_config")
    refuse_switches(folder, data)
    named = data.get("eagle_aux_hidden_state_layer_ids")
    return validated(folder, {**read_layer(folder, inner), **read_fusion(folder, data, named, layers)})


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
    config, tensors = checkpoint.config, tensors_of(checkpoint)
    if not isinstance(config, HeadConfig) or config.kind != "eagle3" or config.qkv_bias:
        raise CheckpointError("the speculators format takes EAGLE-3 heads without biases")
    own = checkpoint.embedding if checkpoint.embedding is not None else embedding
    check_shapes({EMBEDDING: (own, config.vocab_size)}, config)
    if config.embedding_scale != 1.0 and own is None:
        raise CheckpointError("the head scales its embeddings, which the format cannot say: give the target's embeddings")
    if own is not None and (checkpoint.embedding is not None or config.embedding_scale != 1.0):
        tensors[EMBEDDING] = scaled(own.to(tensors["fc.weight"]), config.embedding_scale)
    tensors["fc.weight"] = scaled(tensors["fc.weight"], config.feature_scale)
    renamed = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in tensors.items()}
    data = _speculators_config(config, target, max_positions, drafts, tensors["fc.weight"].dtype)
    write_folder(folder, data, {**renamed, **_maps(config, checkpoint.draft_ids)})


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
        "transformer_layer_config": layer_config(config, max_positions, dtype),
    }
