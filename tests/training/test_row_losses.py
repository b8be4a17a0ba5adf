"""Each loss of a row against a loop over its tokens in float64, and its gradient against differences of that loop."""

from math import exp, log

import pytest
import torch

from specdec.training.losses import SoftLabels, loss_of_rows
from specdec.training.row_losses import ETA, LEAST_ALPHA, SMOOTHING, row_losses

KINDS = ("ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid")


def softmax(logits):
    powers = [exp(value - max(logits)) for value in logits]
    return [power / sum(powers) for power in powers]


def reference(kind, logits, p, share=None):
    """share: of kl in lk_hybrid where it is held constant."""
    q = softmax(logits)
    pairs = list(zip(p, q, strict=True))
    alpha = sum(min(pair) for pair in pairs)
    kl = sum(a * log(a / b) for a, b in pairs if a)
    if kind == "ce":
        return -sum(a * log(b) for a, b in pairs if a)
    if kind == "kl":
        return kl
    if kind == "rkl":
        return sum(b * log(b / ((1 - SMOOTHING) * a + SMOOTHING / len(p))) for a, b in pairs)
    if kind == "jsd":
        return sum((a * log(2 * a / (a + b)) if a else 0.0) + b * log(2 * b / (a + b)) for a, b in pairs) / 2
    if kind == "tv":
        return sum(abs(a - b) for a, b in pairs) / 2
    if kind == "nla":
        return -log(max(alpha, LEAST_ALPHA))
    share = exp(-ETA * alpha) if share is None else share
    return share * kl + (1 - share) * (1 - alpha)


def problem():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 12, generator=generator, dtype=torch.float64) * 2
    ids = torch.rand(5, 12, generator=generator).argsort(-1)[:, :4]
    probs = torch.rand(5, 4, generator=generator, dtype=torch.float64).softmax(-1)
    probs[4, 2:] = 0.0
    probs /= probs.sum(-1, keepdim=True)
    ids[4, 2:] = 0
    dense = torch.zeros_like(logits).scatter_add_(1, ids, probs)
    return logits, ids, probs, dense


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_and_its_gradient_are_those_of_a_loop_over_the_tokens(kind):
    logits, ids, probs, dense = problem()
    value, grad = row_losses(kind, logits.clone(), ids, probs)
    for row in range(len(logits)):
        z, p = logits[row].tolist(), dense[row].tolist()
        assert float(value[row]) == pytest.approx(reference(kind, z, p), rel=1e-12)
        share = exp(-ETA * sum(map(min, p, softmax(z))))
        for token in range(len(z)):
            above, below = ([*z[:token], z[token] + step, *z[token + 1 :]] for step in (1e-6, -1e-6))
            slope = (reference(kind, above, p, share) - reference(kind, below, p, share)) / 2e-6
            assert float(grad[row, token]) == pytest.approx(slope, abs=2e-8)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("tv", 0.3), ("nla", 0.356675), ("kl", 0.193794), ("lk_hybrid", 0.3 + exp(-2.1) * (0.193794 - 0.3))],
)
def test_known_answers(kind, expected):
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.3, 0.2, 0.5]])
    value, _ = row_losses(kind, q.double().log(), torch.tensor([[0, 1, 2]]), p)
    assert float(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_through_the_lm_head_a_row_without_labels_costs_and_teaches_nothing(kind):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, 8, generator=generator).requires_grad_()
    weight = torch.randn(12, 8, generator=generator).requires_grad_()
    _, ids, probs, _ = problem()
    probs = probs[:4].float()
    probs[2] = 0.0
    loss, _ = loss_of_rows(kind, states, weight, SoftLabels(ids[:4], probs))
    loss.backward()
    rest = torch.tensor([0, 1, 3])
    alone, _ = row_losses(kind, (states @ weight.T).detach()[rest], ids[rest], probs[rest])
    assert float(loss.detach()) == pytest.approx(float(alone.sum()), rel=1e-6)
    assert bool((states.grad[2] == 0).all())
    assert bool(weight.grad.abs().sum() > 0)


def test_nothing_is_learnt_by_nla_where_no_draft_would_be_accepted():
    value, grad = row_losses("nla", torch.tensor([[0.0, 40.0]]), torch.tensor([[0]]), torch.tensor([[1.0]]))
    assert float(value) == pytest.approx(-log(LEAST_ALPHA))
    assert bool((grad == 0).all())
