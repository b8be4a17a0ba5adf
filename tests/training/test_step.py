import dataclasses

import pytest
import torch
from torch.nn import functional

from specdec.heads.config import Inputs
from specdec.training.initialization import fresh_head
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


def naive(head, borrowed, batch, steps):
    """The published losses, each row of each step drafted anew from the text before it, with nothing cached or masked."""
    shifted = head.config.inputs is not Inputs.FEATURE_AND_UNSHIFTED_TOKEN
    total = torch.zeros((), dtype=torch.float64)
    for step in range(steps):
        losses = []
        for ids, judged, features, inputs, top, logits in zip(
            batch.token_ids, batch.judged, batch.features, batch.inputs, batch.top_ids, batch.top_logits, strict=True
        ):
            for row in (row for row in range(step, len(ids) - 1) if judged[row + 1]):
                pairs = head.input_projection(inputs[None, : row - step + 1])
                for count in range(row - step + 1, row + 2):
                    tokens = ids[1 : count + 1] if shifted else ids[:count]
                    output = head(borrowed.embedding[tokens][None], pairs, torch.arange(count)[None])
                    pairs = torch.cat((pairs, output[:, -1:]), 1)
                state = output[0, -1]
                lm_head = borrowed.lm_head if head.lm_head is None else head.lm_head.weight
                said = functional.log_softmax(head.lm_head_states(state) @ lm_head.T, -1)[top[row + 1].long()]
                entropy = -(logits[row + 1].softmax(-1) * said).sum()
                distance = functional.smooth_l1_loss(state, features[row + 1])
                losses.append(LOSSES.regression * distance + LOSSES.cross_entropy * entropy)
        total = total + LOSSES.step_decay**step * torch.stack(losses).double().mean()
    return total


@pytest.mark.parametrize("inputs", Inputs)
@pytest.mark.parametrize("own", [False, True])
def test_each_step_of_each_input_is_the_loss_of_a_draft_from_the_text_before_it(batch, head_sizes, borrowed, inputs, own):
    head = fresh_head(head_sizes(inputs=inputs, own_lm_head=own), borrowed.lm_head * 1.1, 1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    pair = batch(9, 6)
    found = batch_loss(head, borrowed, torch.arange(40), pair, losses=LOSSES, steps=3).total
    torch.testing.assert_close(found.double(), naive(head, borrowed, pair, 3), rtol=1e-5, atol=1e-6)


def test_each_step_of_eagle3_is_the_loss_of_a_draft_from_the_text_before_it(batch, head_sizes, borrowed):
    head = fresh_head(head_sizes(layers=(1, 2), own_lm_head=True), borrowed.lm_head, 1)
    pair = batch(9, 6, layers=True)
    found = batch_loss(head, borrowed, torch.arange(40), pair, losses=LOSSES, steps=3).total
    torch.testing.assert_close(found.double(), naive(head, borrowed, pair, 3), rtol=1e-5, atol=1e-6)


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
