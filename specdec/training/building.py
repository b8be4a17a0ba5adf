"""A fresh head for a target: sizes from the target, identity on the feature path, input scales measured on the data."""

from typing import Any

import torch
from torch import Tensor, nn

from specdec.errors import TargetMismatch
from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.targets.model_call import ModelCall
from specdec.training.dataset import FeatureSet, draft_vocabulary
from specdec.training.spec import HeadSpec
from specdec.training.validation import Borrowed

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
    rows = call.head(torch.eye(size, dtype=call.dtype, device=call.device)).T
    if float(call.head(torch.zeros(1, size, dtype=call.dtype, device=call.device)).abs().max()) > 0:
        raise TargetMismatch("the target's LM head has a bias, which a head cannot borrow")
    rows = rows if draft_ids is None else rows[draft_ids]
    return Borrowed(embedding.clone(), rows.clone(), draft_ids)


def head_config(spec: HeadSpec, target: Any, embedding: Tensor, data: FeatureSet) -> HeadConfig:
    """Sizes of the target's config where the spec names none; inputs scaled to a root mean square of 1."""
    counts = data.token_counts(target.vocab_size).clamp_max(1000).float()
    weights = counts / counts.sum()
    rms = float((embedding.float().square().mean(-1).cpu() * weights).sum().sqrt())
    return HeadConfig(
        hidden_size=target.hidden_size,
        intermediate_size=spec.intermediate_size or target.intermediate_size,
        num_attention_heads=spec.num_attention_heads or target.num_attention_heads,
        num_key_value_heads=spec.num_key_value_heads or target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=spec.draft_vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=spec.rope_theta,
        fc_bias=spec.fc_bias,
        inputs=spec.inputs,
        embedding_scale=1.0 / rms,
        feature_scale=1.0 / data.feature_rms(),
        layers=spec.layers,
        own_lm_head=spec.train_lm_head or bool(spec.layers),
    )


def draft_ids(spec: HeadSpec, counts: Tensor) -> Tensor | None:
    """The reduced vocabulary, or None for all tokens. counts: [vocab] of what assistants said."""
    return None if spec.draft_vocab_size is None else draft_vocabulary(counts, spec.draft_vocab_size)


def fresh_head(config: HeadConfig, lm_head: Tensor, seed: int) -> EagleHead | EagleHead3:
    """Random weights of a seed; an EAGLE-1 head starts by repeating the feature, an EAGLE-3 one from the target's LM head."""
    coins = torch.Generator().manual_seed(seed)
    head: EagleHead | EagleHead3 = EagleHead3(config) if config.layers else EagleHead(config)
    with torch.no_grad():
        for name, module in head.named_modules():
            if isinstance(module, nn.Linear):
                branch = name.endswith(("o_proj", "down_proj"))
                module.weight.normal_(0.0, BRANCH_STD if branch else WEIGHT_STD, generator=coins)
                if module.bias is not None:
                    module.bias.zero_()
        if isinstance(head, EagleHead3):
            head.lm_head.weight.copy_(lm_head)
        elif config.inputs.has_feature:
            head.fc.weight[:, -config.hidden_size :].copy_(torch.eye(config.hidden_size) / config.feature_scale)
    return head
