import pytest
import torch
from torch.nn import functional

from specdec.training.losses import SoftLabels, feature_regression, loss_of_rows, soft_labels


def problem(rows=300, hidden=32, vocab=200, k=6, dtype=torch.float32):
    torch.manual_seed(0)
    states, weight = torch.randn(rows, hidden), torch.randn(vocab, hidden) * 0.3
    ids = torch.rand(rows, vocab).argsort(-1)[:, :k]
    return states.to(dtype), weight.to(dtype), SoftLabels(ids, torch.rand(rows, k).softmax(-1))


def naive(states, weight, labels):
    target = torch.zeros(len(states), len(weight), dtype=states.dtype).scatter_(1, labels.ids, labels.probs.to(states.dtype))
    return -(target * functional.log_softmax(states @ weight.T, -1)).sum()


def test_the_loss_and_its_gradients_are_those_of_the_plain_formula():
    states, weight, labels = problem()
    ours = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
    theirs = [states.double().requires_grad_(), weight.double().requires_grad_()]
    loss, _ = loss_of_rows("ce", *ours, labels)
    expected = naive(*theirs, labels)
    (0.7 * loss).backward()
    (0.7 * expected).backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-4)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


def test_a_row_without_labels_costs_nothing_and_teaches_nothing():
    states, weight, labels = problem(rows=4)
    labels.probs[2] = 0.0
    states.requires_grad_()
    loss, _ = loss_of_rows("ce", states, weight, labels)
    loss.backward()
    assert bool((states.grad[2] == 0).all())
    rest = SoftLabels(labels.ids[[0, 1, 3]], labels.probs[[0, 1, 3]])
    torch.testing.assert_close(loss, loss_of_rows("ce", states[[0, 1, 3]], weight, rest)[0])


def test_gradients_in_bfloat16_stay_within_a_hundredth_where_the_head_is_good():
    """p - q cancels there: q is p up to a disturbance that leaves their agreement at about 0.98."""
    torch.manual_seed(0)
    vocab = 64
    logits = torch.randn(500, vocab) * 3
    labels = SoftLabels(torch.arange(vocab).expand(500, vocab), (logits + 0.05 * torch.randn(500, vocab)).softmax(-1))
    states = logits.to(torch.bfloat16).requires_grad_()
    loss, _ = loss_of_rows("ce", states, torch.eye(vocab, dtype=torch.bfloat16), labels)
    loss.backward()
    exact = states.detach().double().softmax(-1) - labels.probs.double()
    agreement = torch.minimum(states.detach().double().softmax(-1), labels.probs.double()).sum(-1).mean()
    assert float(agreement) > 0.97
    assert float((states.grad.double() - exact).norm() / exact.norm()) < 0.01


def test_labels_are_the_targets_distribution_over_what_can_be_drafted():
    row_of_id = torch.tensor([-1, 0, 1, -1, 2])
    top_ids = torch.tensor([[1, 0, 4], [0, 3, 0]])
    top_logits = torch.tensor([[2.0, 5.0, 1.0], [1.0, 0.5, 0.2]])
    labels = soft_labels(top_ids, top_logits, row_of_id)
    assert labels.ids[0].tolist() == [0, 0, 2]
    torch.testing.assert_close(labels.probs[0, [0, 2]], torch.tensor([2.0, 1.0]).softmax(-1))
    assert labels.probs[0, 1] == 0
    assert labels.probs[1].tolist() == [0.0, 0.0, 0.0]


def test_hits_count_rows_whose_best_token_is_the_labels():
    states, weight = torch.eye(3), torch.eye(3)
    labels = SoftLabels(torch.tensor([[0, 1], [0, 1], [2, 1]]), torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]))
    assert int(loss_of_rows("ce", states, weight, labels)[1]) == 2


def test_regression_is_summed_over_rows_and_averaged_over_features():
    predicted, target = torch.zeros(2, 4), torch.tensor([[0.5] * 4, [3.0] * 4])
    assert float(feature_regression(predicted, target)) == pytest.approx(0.125 + 2.5)
