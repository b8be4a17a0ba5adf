"""A fresh head for a target: sizes from the target, identity on the feature path, input scales measured on the data."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from specdec.errors import SpecdecWarning, SpecError, TargetMismatch
from specdec.heads.architectures import TrainedConfig, TrainedHead, trainable_head
from specdec.heads.config import HeadConfig, LayerConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.hydra import HydraConfig, HydraHead, WideBlock
from specdec.heads.medusa import MedusaConfig, MedusaHead
from specdec.targets.model_call import ModelCall
from specdec.training.borrowed import Borrowed
from specdec.training.dataset import FeatureSet, draft_vocabulary
from specdec.training.features import FeaturePlan
from specdec.training.spec import HeadSpec

INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads")
EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
"""What configs of transformers call the sizes of a head, the commonest name first."""

N = TypeVar("N", int, float)

LARGE = 1024.0
"""A power of two, so that nothing but a cap changes what comes out."""

PUBLISHED_FROM, FEW = 7, 3
"""Layers from which on the rule of published EAGLE-3 heads names three different ones; and those that a head fuses."""

NUM_HEADS, NUM_BLOCKS = 4, 1
"""Of heads that each predict one depth: as deep as Medusa's trees of 63 nodes."""

WEIGHT_STD = 0.02
BRANCH_STD = 0.002
"""Of the projections that write to the residual stream: small, so that a fresh head repeats its input feature."""


@torch.inference_mode()
def borrow(call: ModelCall, draft_ids: Tensor | None) -> Borrowed:
    """The target's embeddings and the LM head's rows for `draft_ids`, scales included, as copies that may be trained on."""
    size = call.hidden_size
    if size is None:
        raise TargetMismatch("the target's features were not found")
    embedding = torch.cat([call.embed(ids) for ids in torch.split(torch.arange(call.vocab_size, device=call.device), 8192)])
    eye = torch.eye(size, dtype=call.dtype, device=call.device)
    rows = call.head(eye).T
    if float(call.head(torch.zeros(1, size, dtype=call.dtype, device=call.device)).abs().max()) > 0:
        raise TargetMismatch("the target's LM head has a bias, which a head cannot borrow")
    if not torch.allclose(call.head(LARGE * eye[:1]).T, LARGE * rows[:, :1], rtol=1e-2):
        raise TargetMismatch("the target caps its logits, so that its LM head is no matrix that a head could borrow")
    rows = rows if draft_ids is None else rows[draft_ids]
    return Borrowed(embedding.clone(), rows.clone(), draft_ids)


def head_config(spec: HeadSpec, target: Any, embedding: Tensor, data: FeatureSet) -> TrainedConfig:
    """`head_sizes`, the inputs of all but Medusa heads scaled to a root mean square of 1. Raises SpecError."""
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


def check_plan(plan: FeaturePlan, vocab_size: int, num_layers: int) -> None:
    """Raise SpecError for features that a target of this vocabulary and depth cannot give."""
    if plan.top_k > vocab_size:
        raise SpecError(f"data.top_k: {plan.top_k} of {vocab_size} tokens; at most {vocab_size} would work")
    if not _are_layers(plan.layers, num_layers):
        raise SpecError(
            f"data.keep_layers: {list(plan.layers)} for a target of {num_layers} layers; "
            f"different numbers from 0 to {num_layers} would work"
        )


def draft_ids(spec: HeadSpec, counts: Tensor) -> Tensor | None:
    """The reduced vocabulary, or None for all tokens. counts: [vocab] of what assistants said.

    Where fewer tokens than wanted were ever said, the lowest other ids fill it up, with a SpecdecWarning. Raises SpecError for
    more tokens than there are.
    """
    size = spec.draft_vocab_size
    if size is None:
        return None
    if size > len(counts):
        raise SpecError(f"head.draft_vocab_size: {size} of {len(counts)} tokens; null drafts all of them")
    said = int((counts > 0).sum())
    if said < size:
        message = f"only {said} tokens occur in answers; head.draft_vocab_size: {size} is filled up with others"
        warnings.warn(message, SpecdecWarning, stacklevel=2)
    return draft_vocabulary(counts, size)


def fused_layers(spec: HeadSpec, num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs the head fuses; none but for EAGLE-3. Unset: those of published heads. Raises SpecError.

    *Source: arXiv 2503.01840, published code.*
    """
    if spec.kind != "eagle3":
        return ()
    layers = spec.layers or default_layers(num_layers)
    if not _are_layers(layers, num_layers):
        raise SpecError(
            f"head.layers: {list(layers)} for a target of {num_layers} layers; "
            f"different numbers from 0 to {num_layers} would work"
        )
    return layers


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Those of published heads, low, middle and high; where a target has too few layers for that, spread over what there is."""
    if num_layers >= PUBLISHED_FROM:
        return (2, num_layers // 2, num_layers - 3)
    if num_layers < FEW:
        return tuple(range(num_layers + 1))
    high = max(num_layers - 1, FEW)
    return (1, (1 + high) // 2, high)


def _are_layers(layers: Sequence[int], num_layers: int) -> bool:
    return len(set(layers)) == len(layers) and all(0 <= layer <= num_layers for layer in layers)


def fresh_head(config: TrainedConfig, lm_head: Tensor, seed: int) -> TrainedHead:
    """Random weights of a seed. All but EAGLE-3 heads start by repeating the feature, own LM heads as the target's rows.

    *Source: for Medusa's, arXiv 2401.10774, section 2.1.*
    """
    generator = torch.Generator().manual_seed(seed)
    head = trainable_head(config)
    with torch.no_grad():
        if isinstance(head, MedusaHead | HydraHead):
            _begin_by_depth(head, lm_head, generator)
            return head
        _draw_maps(head, generator)
        if head.lm_head is not None:
            head.lm_head.weight.copy_(lm_head)
        if isinstance(head, EagleHead) and head.config.inputs.has_feature:
            head.fc.weight[:, -config.hidden_size :].copy_(torch.eye(config.hidden_size) / head.config.feature_scale)
    return head


def _draw_maps(module: nn.Module, generator: torch.Generator) -> None:
    """Random weights for all linear maps, and no biases."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            branch = name.endswith(("o_proj", "down_proj"))
            part.weight.normal_(0.0, BRANCH_STD if branch else WEIGHT_STD, generator=generator)
            if part.bias is not None:
                part.bias.zero_()


def _begin_by_depth(head: MedusaHead | HydraHead, lm_head: Tensor, generator: torch.Generator) -> None:
    """Blocks that give the feature as it is, for one LM head or for each one's own."""
    for own in head.own_lm_heads:
        own.weight.copy_(lm_head)
        if own.bias is not None:
            own.bias.zero_()
    if not isinstance(head, HydraHead):
        return
    size, scale = head.config.hidden_size, head.config.feature_scale
    for block in (part for part in head.modules() if isinstance(part, WideBlock)):
        for parameter in block.parameters():
            parameter.zero_()
        block.res_connection.weight[:, :size].copy_(torch.eye(size) / scale)
    if head.prefix is not None:
        _draw_maps(head.prefix, generator)
        head.prefix.norm.weight.fill_(1.0 / scale)
