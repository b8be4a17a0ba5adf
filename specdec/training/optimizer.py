"""AdamW for everything, or Muon for matrices."""

import torch
from torch import nn

from specdec.training.spec import OptimizerSpec


def optimizers(head: nn.Module, spec: OptimizerSpec) -> list[torch.optim.Optimizer]:
    """Every group carries its peak learning rate as `peak`. Norms and biases are not decayed."""
    matrices = [p for name, p in head.named_parameters() if p.dim() == 2 and not name.startswith("lm_head")]
    others = [p for p in head.parameters() if p.dim() != 2]
    lm_head = [p for name, p in head.named_parameters() if name.startswith("lm_head")]
    groups = [{"params": others + lm_head, "weight_decay": 0.0, "peak": spec.learning_rate}]
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
