"""AdamW for everything, or Muon for matrices."""

import math

import torch
from torch import nn

from specdec.training.spec import OptimizerSpec

BY_TOKEN = ("lm_head", "markov_head")
"""Matrices with a row for each token: not decayed, and not for Muon."""


def optimizers(head: nn.Module, spec: OptimizerSpec) -> list[torch.optim.Optimizer]:
    """Every group carries its peak learning rate as `peak`. Norms and biases are not decayed."""
    matrices = [p for name, p in head.named_parameters() if p.dim() == 2 and not name.startswith(BY_TOKEN)]
    others = [p for name, p in head.named_parameters() if p.dim() != 2 and not name.startswith(BY_TOKEN)]
    by_token = [p for name, p in head.named_parameters() if name.startswith(BY_TOKEN)]
    groups = [{"params": others + by_token, "weight_decay": 0.0, "peak": spec.learning_rate}]
    if spec.use == "adamw":
        groups.append({"params": matrices, "weight_decay": spec.weight_decay, "peak": spec.learning_rate})
    adamw = torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas)
    if spec.use == "adamw":
        return [adamw]
    muon = torch.optim.Muon(
        [{"params": matrices, "peak": spec.muon_learning_rate}],
        lr=spec.muon_learning_rate,
        weight_decay=spec.weight_decay,
        adjust_lr_fn="original",
    )
    return [adamw, muon]


def learning_rate_share(progress: float, warmup: float, final_share: float) -> float:
    """Share of the peak at `progress` in [0, 1]: linear up over `warmup`, then a cosine down to `final_share`."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    rest = 0.0 if warmup >= 1 else (progress - warmup) / (1 - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * rest))
