"""A fresh head for a target: what it borrows, identity on the feature path, its draft vocabulary and layers."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdec.errors import SpecdecWarning, SpecError, TargetMismatch
from specdec.heads.architectures import TrainedConfig, TrainedHead, trainable_head
from specdec.heads.block import BlockHead
from specdec.heads.eagle import EagleHead
from specdec.heads.hydra import HydraHead, WideBlock
from specdec.heads.medusa import MedusaHead
from specdec.targets.model_call import ModelCall
from specdec.training.borrowed import Borrowed
from specdec.training.dataset import draft_vocabulary
from specdec.training.features import FeaturePlan
from specdec.training.head_spec import FUSING, HeadSpec

LARGE = 1024.0
"""A power of two, so that nothing but a cap changes what comes out."""

PUBLISHED_FROM, FEW = 7, 3
"""Layers from which on the rule of published EAGLE-3 heads names three different ones; and those that a head fuses."""

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
    """The layers whose inputs the head fuses; none but for EAGLE-3 and one-pass heads. Raises SpecError.

    Unset: those of published EAGLE-3 heads.

    *Source: arXiv 2503.01840, published code.*
    """
    if spec.kind not in FUSING:
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
    """Random weights of a seed. EAGLE-1, Medusa and Hydra heads start by repeating the feature.

    LM heads of their own start as the target's rows.

    *Source: for Medusa's, arXiv 2401.10774, section 2.1.*
    """
    generator = torch.Generator().manual_seed(seed)
    head = trainable_head(config)
    with torch.no_grad():
        if isinstance(head, MedusaHead | HydraHead):
            _begin_by_depth(head, lm_head, generator)
            return head
        if isinstance(head, BlockHead):
            _draw_maps(head, generator, branch=WEIGHT_STD)
            if head.markov_head is not None:
                head.markov_head.markov_w1.weight.normal_(0.0, WEIGHT_STD, generator=generator)
                head.markov_head.markov_w2.weight.zero_()
            return head
        _draw_maps(head, generator)
        if head.lm_head is not None:
            head.lm_head.weight.copy_(lm_head)
        if isinstance(head, EagleHead) and head.config.inputs.has_feature:
            head.fc.weight[:, -config.hidden_size :].copy_(torch.eye(config.hidden_size) / head.config.feature_scale)
    return head


def _draw_maps(module: nn.Module, generator: torch.Generator, branch: float = BRANCH_STD) -> None:
    """Random weights for all linear maps, `branch` wide where they write to the residual stream, and no biases."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            writes = name.endswith(("o_proj", "down_proj"))
            part.weight.normal_(0.0, branch if writes else WEIGHT_STD, generator=generator)
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
