"""Losses of a row of logits against the target's distribution, with their gradients: what `losses.row_loss` chooses from.

Below, p is the target's distribution, q the head's, and alpha = sum min(p, q), the share of drafts that speculative sampling
accepts. *Source: arXiv 2310.08461 (DistillSpec): kl, rkl, jsd, tv; arXiv 2602.23881 (LK losses): nla, lk_hybrid.*
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

RowLoss: TypeAlias = Literal["ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid"]

SMOOTHING = 1e-3
"""Share of a uniform distribution that `rkl` mixes into p, which is 0 for tokens whose logits were not kept."""

LEAST_ALPHA = 1e-5
"""`nla` is constant below it, as published."""

ETA = 3.0
"""How fast `lk_hybrid` turns from kl to tv as the head gets better, as published."""


class Rows(NamedTuple):
    """value: [rows]. grad: [rows, drafts] by the logits."""

    value: Tensor
    grad: Tensor


def row_losses(kind: RowLoss, logits: Tensor, ids: Tensor, probs: Tensor) -> Rows:
    """The loss of each row and its gradient, in the logits' dtype. Rows whose probs are all 0 cost and teach nothing.

    logits: [rows, drafts], which may be overwritten. ids [rows, k]: tokens. probs [rows, k]: p of them, 0 for all others.
    """
    log_q = logits.sub_(logits.logsumexp(-1, keepdim=True))
    probs = probs.to(logits.dtype)
    if kind in ("ce", "kl"):
        return _cross_entropy(log_q, ids, probs, less_entropy=kind == "kl")
    p = torch.zeros_like(log_q).scatter_add_(1, ids, probs)
    known = probs.sum(-1)
    value, grad = DENSE[kind](p, log_q)
    return Rows(value * known, grad * known[:, None])


def _cross_entropy(log_q: Tensor, ids: Tensor, probs: Tensor, *, less_entropy: bool) -> Rows:
    """Ce: -sum p log q. kl: sum p log(p / q), which has the same gradient, q - p."""
    value = -(probs * log_q.gather(1, ids)).sum(-1)
    if less_entropy:
        value = value + torch.xlogy(probs, probs).sum(-1)
    grad = log_q.exp_().mul_(probs.sum(-1, keepdim=True))
    return Rows(value, grad.scatter_add_(1, ids, -probs))


def _by_logits(q: Tensor, by_q: Tensor) -> Tensor:
    """The gradient by the logits from that by q = softmax(logits)."""
    return q * (by_q - (q * by_q).sum(-1, keepdim=True))


def _reverse(p: Tensor, log_q: Tensor) -> Rows:
    """Sum q log(q / p'), with p' = (1 - SMOOTHING) p + SMOOTHING / drafts."""
    ratio = log_q - torch.log((1 - SMOOTHING) * p + SMOOTHING / p.shape[-1])
    q = log_q.exp()
    return Rows((q * ratio).sum(-1), _by_logits(q, ratio))


def _jensen_shannon(p: Tensor, log_q: Tensor) -> Rows:
    """(KL(p, m) + KL(q, m)) / 2 with m = (p + q) / 2."""
    q = log_q.exp()
    log_m = torch.log(((p + q) / 2).clamp_min(torch.finfo(q.dtype).tiny))
    ratio = log_q - log_m
    value = (torch.xlogy(p, p) - p * log_m + q * ratio).sum(-1) / 2
    return Rows(value, _by_logits(q, ratio / 2))


def _overlap(p: Tensor, log_q: Tensor) -> Rows:
    """alpha, and its gradient."""
    q = log_q.exp()
    return Rows(torch.minimum(p, q).sum(-1), _by_logits(q, (q < p).to(q.dtype)))


def _total_variation(p: Tensor, log_q: Tensor) -> Rows:
    """1 - alpha: the share of drafts that is rejected."""
    alpha, grad = _overlap(p, log_q)
    return Rows(1 - alpha, -grad)


def _negative_log_acceptance(p: Tensor, log_q: Tensor) -> Rows:
    """-log alpha."""
    alpha, grad = _overlap(p, log_q)
    bounded = alpha.clamp_min(LEAST_ALPHA)
    return Rows(-bounded.log(), -grad * ((alpha >= LEAST_ALPHA) / bounded)[:, None])


def _hybrid(p: Tensor, log_q: Tensor) -> Rows:
    """L kl + (1 - l) tv, with l = exp(-ETA alpha) taken as a constant."""
    alpha, grad = _overlap(p, log_q)
    share = torch.exp(-ETA * alpha)
    divergence = (torch.xlogy(p, p) - p * log_q).sum(-1)
    by_divergence = log_q.exp() - p
    return Rows(share * divergence + (1 - share) * (1 - alpha), share[:, None] * by_divergence - (1 - share)[:, None] * grad)


DENSE: dict[str, Callable[[Tensor, Tensor], Rows]] = {
    "rkl": _reverse,
    "jsd": _jensen_shannon,
    "tv": _total_variation,
    "nla": _negative_log_acceptance,
    "lk_hybrid": _hybrid,
}
