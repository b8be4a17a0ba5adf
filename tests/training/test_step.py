import dataclasses

import pytest
import torch

from specdec.training.building import fresh_head
from specdec.training.spec import LossSpec
from specdec.training.step import batch_loss

LOSSES = LossSpec(regression=1.0, cross_entropy=0.1)


@pytest.fixture(params=["eagle", "eagle3"])
def layers(request):
    return (1, 2) if request.param == "eagle3" else ()


@pytest.fixture
def head(layers, head_sizes, borrowed):
    return fresh_head(head_sizes(layers=layers), borrowed.lm_head, 1)


@pytest.fixture
def loss(head, borrowed):
    """The loss of a batch, and its gradient as one vector."""

    def of(batch, steps=2):
        head.zero_grad()
        found = batch_loss(head, borrowed, torch.arange(40), batch, losses=LOSSES, steps=steps)
        found.total.backward()
        return found.total.detach(), torch.cat([p.grad.flatten() for p in head.parameters() if p.grad is not None])

    return of


def padded(batch, width):
    def longer(tensor):
        return torch.cat((tensor, tensor.new_zeros((tensor.shape[0], width, *tensor.shape[2:]))), 1)

    return dataclasses.replace(batch, **{f.name: longer(getattr(batch, f.name)) for f in dataclasses.fields(batch)})


def rows_of(batch, *rows):
    return dataclasses.replace(batch, **{f.name: getattr(batch, f.name)[list(rows)] for f in dataclasses.fields(batch)})


def test_padding_changes_neither_loss_nor_gradient(batch, loss, layers):
    plain = batch(9, 7, layers=bool(layers))
    for mine, other in zip(loss(padded(plain, 12)), loss(plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_every_judged_row_weighs_the_same_whatever_conversation_it_is_in(batch, loss, layers):
    both = batch(14, 6, layers=bool(layers))
    alone = [loss(rows_of(both, row), steps=1) for row in range(2)]
    rows = [int(both.judged[row, 1:].sum()) for row in range(2)]
    for mine, first, second in zip(loss(both, steps=1), *alone, strict=True):
        torch.testing.assert_close(mine, (rows[0] * first + rows[1] * second) / sum(rows), rtol=1e-4, atol=1e-6)


def test_a_batch_without_a_word_of_the_assistant_gives_no_loss(batch, head, borrowed, layers):
    silent = batch(9, 7, layers=bool(layers))
    silent.judged[:] = False
    assert batch_loss(head, borrowed, torch.arange(40), silent, losses=LOSSES, steps=2) is None


def test_what_is_not_judged_has_no_influence_as_a_label(batch, loss, layers):
    plain = batch(12, layers=bool(layers))
    plain.judged[:, 7:] = False
    before = loss(plain)[0]
    plain.top_logits[:, 8:] += 5.0
    plain.top_ids[:, 8:] = 0
    assert torch.equal(loss(plain)[0], before)


def test_a_perfect_feature_has_no_regression_loss_and_the_labels_entropy(batch, head_sizes, borrowed):
    """The head is an identity here, and every feature equals the one before."""
    head = fresh_head(head_sizes(), borrowed.lm_head, 0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.fc.weight[:, 16:] = torch.eye(16)
    one = batch(10)
    constant = one.features[:, :1].expand_as(one.features).contiguous()
    top = (constant @ borrowed.lm_head.T).topk(40)
    same = dataclasses.replace(one, features=constant, inputs=constant, top_ids=top.indices, top_logits=top.values)
    found = batch_loss(head, borrowed, torch.arange(40), same, losses=LOSSES, steps=3)
    probs = top.values[0, 0].softmax(-1)
    assert found.regression == pytest.approx(0.0, abs=1e-6)
    assert found.cross_entropy == pytest.approx(float(-(probs * probs.log()).sum()), rel=1e-4)
    assert found.accuracy == (1.0, 1.0, 1.0)
