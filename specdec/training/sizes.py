"""Sizes of a fresh head: the spec's where it names them, else the target's; input scales measured on the data."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import Tensor

from specdec.errors import SpecError
from specdec.heads.architectures import TrainedConfig
from specdec.heads.block import BlockConfig
from specdec.heads.config import HeadConfig, LayerConfig
from specdec.heads.hydra import HydraConfig
from specdec.heads.medusa import MedusaConfig
from specdec.training.dataset import FeatureSet
from specdec.training.head_spec import HeadSpec

INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads")
EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
"""What configs of transformers call the sizes of a head, the commonest name first."""

N = TypeVar("N", int, float)

NUM_HEADS, NUM_BLOCKS = 4, 1
"""Of heads that each predict one depth: as deep as Medusa's trees of 63 nodes."""

BLOCK_SIZE = 8
"""Of one-pass heads: seven levels."""


def head_config(spec: HeadSpec, target: Any, embedding: Tensor, data: FeatureSet) -> TrainedConfig:
    """`head_sizes`, the inputs of EAGLE and Hydra heads scaled to a root mean square of 1. Raises SpecError."""
    sizes = head_sizes(spec, target)
    if not isinstance(sizes, HeadConfig | HydraConfig):
        return sizes
    counts = data.token_counts(target.vocab_size).clamp_max(1000).float()
    weights = counts / counts.sum()
    rms = float((embedding.float().square().mean(-1).cpu() * weights).sum().sqrt())
    scales = {"embedding_scale": 1.0 / rms, "feature_scale": 1.0 / data.feature_rms()}
    return sizes.model_copy(update=scales)


def head_sizes(spec: HeadSpec, target: Any) -> TrainedConfig:
    """Sizes of the target's config where the spec names none, its inputs not scaled yet. Raises SpecError.

    Where the config has no such size, as GPT-2's has not: a key-value head for each head, four times the width, an epsilon of
    1e-5.
    """
    try:
        if spec.kind == "medusa":
            return MedusaConfig(**_depth_sizes(spec, target))
        if spec.kind == "hydra":
            prefix = LayerConfig(**_layer_sizes(spec, target)) if spec.prefix else None
            return HydraConfig(**_depth_sizes(spec, target), prefix=prefix)
        if spec.kind == "block":
            return BlockConfig(**_block_sizes(spec, target))
        return HeadConfig(**_eagle_sizes(spec, target))
    except ValidationError as error:
        raise SpecError("head: " + "; ".join(fault["msg"] for fault in error.errors())) from error


def _depth_sizes(spec: HeadSpec, target: Any) -> dict[str, Any]:
    """Of heads that each predict one depth."""
    return {
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "num_heads": spec.num_heads or NUM_HEADS,
        "num_blocks": spec.num_blocks or NUM_BLOCKS,
        "own_lm_head": bool(spec.train_lm_head),
    }


def _block_sizes(spec: HeadSpec, target: Any) -> dict[str, Any]:
    return {
        **_layer_sizes(spec, target),
        "vocab_size": target.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "layers": spec.layers,
        "num_layers": spec.num_layers or 1,
        "block_size": spec.block_size or BLOCK_SIZE,
        "mask_token_id": target.vocab_size - 1 if spec.mask_token_id is None else spec.mask_token_id,
        "causal": spec.causal,
        "from_anchor": spec.from_anchor,
        "markov_rank": spec.markov_rank,
    }


def _eagle_sizes(spec: HeadSpec, target: Any) -> dict[str, Any]:
    return {
        **_layer_sizes(spec, target),
        "vocab_size": target.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "fc_bias": spec.fc_bias,
        "inputs": spec.inputs,
        "layers": spec.layers,
        "own_lm_head": bool(spec.train_lm_head or spec.layers),
    }


def _layer_sizes(spec: HeadSpec, target: Any) -> dict[str, Any]:
    """Of one decoder layer."""
    heads = target.num_attention_heads
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": spec.intermediate_size or _first(target, INTERMEDIATE, int, 4 * target.hidden_size),
        "num_attention_heads": spec.num_attention_heads or heads,
        "num_key_value_heads": spec.num_key_value_heads
        or _first(target, KEY_VALUE_HEADS, int, spec.num_attention_heads or heads),
        "head_dim": _first(target, ("head_dim",), int, target.hidden_size // heads),
        "rms_norm_eps": _first(target, EPSILONS, float, 1e-5),
        "rope_theta": spec.rope_theta,
    }


def _first(target: Any, names: Sequence[str], kind: type[N], otherwise: N) -> N:
    """The first of these values of a config that is set."""
    values = (getattr(target, name, None) for name in names)
    return next((value for value in values if isinstance(value, kind) and value), otherwise)
