"""The unroll against drafting step by step, the slow way."""

import pytest
import torch

from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.training.unroll import unroll

ROWS, STEPS = 8, 4


@pytest.fixture(params=["eagle", "eagle3"])
def head(request):
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 30,
    }
    torch.manual_seed(0)
    made = EagleHead3(HeadConfig(**sizes, layers=(1, 2))) if request.param == "eagle3" else EagleHead(HeadConfig(**sizes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.3)
    return made


def inputs(head):
    torch.manual_seed(1)
    width = (2, 16) if isinstance(head, EagleHead3) else (16,)
    return torch.randn(1, ROWS, 16), torch.randn(1, ROWS, *width)


def draft(head, embeddings, features, start, depth):
    """The hidden states of a chain that begins after row `start` is known, each step seeing a fresh, explicit sequence."""
    pairs, states = head.input_projection(features[:, : start + 1]), []
    for step in range(depth):
        count = start + 1 + step
        output = head(embeddings[:, :count], pairs, torch.arange(count)[None])
        states.append(output[:, -1])
        pairs = torch.cat((pairs, output[:, -1:]), dim=1)
    return states


def test_every_step_of_every_row_is_the_draft_that_a_decoder_would_make(head):
    embeddings, features = inputs(head)
    steps = list(unroll(head, embeddings, features, STEPS))
    for start in range(ROWS - STEPS):
        for step, state in enumerate(draft(head, embeddings, features, start, STEPS)):
            torch.testing.assert_close(steps[step][:, start + step], state, rtol=1e-4, atol=1e-5)


def test_no_step_sees_a_feature_or_token_of_its_future(head):
    embeddings, features = inputs(head)
    before = list(unroll(head, embeddings, features, STEPS))
    changed = features.clone()
    changed[:, 5:] += 1.0
    tokens = embeddings.clone()
    tokens[:, 6:] -= 1.0
    after = list(unroll(head, tokens, changed, STEPS))
    for step in range(STEPS):
        assert torch.equal(before[step][:, step:5], after[step][:, step:5])
        known = slice(step, min(5 + step, 6))
        torch.testing.assert_close(before[step][:, known], after[step][:, known], rtol=1e-5, atol=1e-6)


def test_gradients_reach_the_first_step_through_the_last(head):
    embeddings, features = inputs(head)
    features.requires_grad_()
    steps = list(unroll(head, embeddings, features, 3))
    steps[2][:, 4].sum().backward()
    touched = features.grad.flatten(2).abs().sum(-1)[0]
    assert bool((touched[:3] > 0).all())
    assert bool((touched[3:] == 0).all())
