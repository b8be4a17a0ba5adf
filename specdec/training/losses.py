"""What a head is trained on: a loss of its rows of logits, through the LM head, and smooth-L1 regression of features."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from specdec.training.row_losses import RowLoss, row_losses

ROWS_PER_CHUNK = 128
"""Rows of logits at once: few enough to stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class SoftLabels:
    """ids [rows, k]: rows of the LM head, 0 where probs is 0. probs [rows, k] float32: each row sums to 1, or is all 0."""

    ids: Tensor
    probs: Tensor


class _ThroughLmHead(Function):
    """Computes the gradient along with the loss, chunk by chunk, so that logits are never kept.

    q - p is formed in float32 and only then rounded: in bfloat16 it cancels once the head is good.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, probs: Tensor, kind: RowLoss) -> tuple[Tensor, Tensor]:
        """Summed loss, and the number of rows whose best token is the label's best."""
        want_weight = ctx.needs_input_grad[1]
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if want_weight else None
        factor = weight.to(torch.bfloat16) if states.dtype == torch.bfloat16 else weight.to(states.dtype)
        loss, hits = states.new_zeros((), dtype=torch.float64), 0
        for start in range(0, len(states), ROWS_PER_CHUNK):
            rows = slice(start, start + ROWS_PER_CHUNK)
            logits = (states[rows] @ factor.T).float()
            labels, targets = ids[rows], probs[rows]
            best = logits.argmax(-1)
            hits += int((best == labels.gather(1, targets.argmax(1, keepdim=True))[:, 0]).sum())
            value, grad = row_losses(kind, logits, labels, targets)
            loss += value.sum(dtype=torch.float64)
            rounded = grad.to(factor.dtype)
            grad_states[rows] = rounded @ factor
            if grad_weight is not None:
                grad_weight += (rounded.T @ states[rows]).float()
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.weight_dtype = weight.dtype
        return loss.float(), torch.tensor(hits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grads[0]
        of_weight = None if grad_weight is None else (grad_weight * scale).to(ctx.weight_dtype)
        return grad_states * scale.to(grad_states.dtype), of_weight, None, None, None


def loss_of_rows(kind: RowLoss, states: Tensor, weight: Tensor, labels: SoftLabels) -> tuple[Tensor, Tensor]:
    """Sum over rows of the loss of q = softmax(states @ weight.T), and the rows where q and p have the same best token.

    states: [rows, hidden] in float32 or bfloat16. weight: [vocab, hidden]; gets a gradient only where it wants one.
    """
    loss, hits = _ThroughLmHead.apply(  # type: ignore[no-untyped-call]
        states, weight, labels.ids, labels.probs, kind
    )
    return loss, hits


def feature_regression(predicted: Tensor, target: Tensor) -> Tensor:
    """Sum over rows of the smooth-L1 distance (beta 1), averaged over features. *Source: arXiv 2401.15077, equation 1.*"""
    return functional.smooth_l1_loss(predicted.float(), target.float(), reduction="none").mean(-1).sum()


def soft_labels(top_ids: Tensor, top_logits: Tensor, row_of_id: Tensor) -> SoftLabels:
    """The target's distribution, kept to its highest logits and to draftable tokens, and renormalised.

    row_of_id: [vocab] row of the LM head for a token, -1 for tokens that cannot be drafted. Rows without any are all 0.
    """
    rows = row_of_id[top_ids.long()]
    known = rows >= 0
    logits = top_logits.float().masked_fill(~known, -torch.inf)
    some = known.any(-1, keepdim=True)
    probs = torch.where(some, logits, 0.0).softmax(-1) * some
    return SoftLabels(rows.clamp_min(0), probs)
