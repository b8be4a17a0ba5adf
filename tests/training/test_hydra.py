"""Heads of one depth that read the tokens between: losses and acceptance, written out; runs that resume."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from specdec.errors import SpecError
from specdec.heads.config import LayerConfig
from specdec.heads.formats.reading import read_head
from specdec.heads.hydra import HydraConfig
from specdec.heads.medusa import MedusaConfig
from specdec.training.head_spec import HeadSpec
from specdec.training.initialization import fresh_head
from specdec.training.sizes import head_sizes
from specdec.training.spec import LossSpec
from specdec.training.started_from import continued, head_to_start_from, sized_as_started
from specdec.training.step import batch_loss
from specdec.training.unroll import drafted
from specdec.training.validation import chain_acceptance

HEADS = 3
LOSSES = LossSpec(regression=0.3, cross_entropy=1.0, step_decay=0.5)
LAYER = LayerConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4)
PLAN = {"head": {"kind": "hydra", "num_heads": HEADS}, "losses": None, "noise": {"width": 0.0}}
RECIPE = {"optimizer": {"learning_rate": 1e-2}, "budget": {"steps": 40}, "validate_every": 1000}


def hydra(**changes) -> HydraConfig:
    return HydraConfig(**{"hidden_size": 16, "vocab_size": 40, "num_heads": HEADS, "feature_scale": 0.5, **changes})


@pytest.fixture(params=[{}, {"prefix": LAYER, "own_lm_head": True, "num_blocks": 2}], ids=["mlp", "prefix-mlp"])
def config(request):
    return hydra(**request.param)


def shaken(config, borrowed):
    """A head that does not just repeat the feature."""
    head = fresh_head(config, borrowed.lm_head, 0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return head


def state_of(head, borrowed, features, tokens) -> torch.Tensor:
    """What the LM head reads after features [so far, hidden] and the tokens that follow: one draft, nothing masked."""
    read = head.read_features(features[None], torch.arange(len(features))[None])[0, -1]
    return head(len(tokens) - 1, read, borrowed.embedding[torch.tensor(tokens)])


def logits_of(head, borrowed, states, depth) -> torch.Tensor:
    return (borrowed.lm_head if head.lm_heads is None else head.lm_heads[depth].weight) @ states


def test_losses_are_those_of_one_draft_at_a_time_weighed_by_depth(batch, borrowed, config):
    head, data = shaken(config, borrowed), batch(9, 7)
    found = batch_loss(head, borrowed, torch.arange(40), data, losses=LOSSES, steps=HEADS)
    total = torch.zeros(())
    for depth in range(HEADS):
        losses = []
        for row, length in enumerate((9, 7)):
            for place in range(length):
                label = place + 1 + depth
                if label < length and data.judged[row, label]:
                    tokens = data.token_ids[row, place + 1 : place + 2 + depth].tolist()
                    states = state_of(head, borrowed, data.features[row, : place + 1], tokens)
                    said = functional.log_softmax(logits_of(head, borrowed, states, depth), -1)
                    entropy = -(data.top_logits[row, label].softmax(-1) * said[data.top_ids[row, label].long()]).sum()
                    losses.append(entropy + 0.3 * functional.smooth_l1_loss(states, data.features[row, label]))
        total = total + 0.5**depth * torch.stack(losses).mean()
    torch.testing.assert_close(found.total, total)
    found.total.backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in head.parameters())


def test_acceptance_is_what_a_chain_decoder_does_on_the_same_answers(batch, borrowed, trainer, config):
    run = trainer("some", config=config, **PLAN, **RECIPE)
    run.run()
    head, data = run.head, batch(21, 16, seed=4)
    found = chain_acceptance(head, borrowed, [data])
    tested, accepted, cycles, committed = [0] * HEADS, [0] * HEADS, 0, 0
    for row, length in enumerate((21, 16)):
        ids, here = data.token_ids[row].tolist(), 1
        while here < length - 2:
            tokens = [ids[here + 1]]
            for step in range(min(HEADS, length - 2 - here)):
                states = state_of(head, borrowed, data.features[row, : here + 1], tokens)
                tokens.append(int(logits_of(head, borrowed, states, step).argmax()))
                tested[step] += 1
                if tokens[-1] != ids[here + 2 + step]:
                    break
                accepted[step] += 1
            else:
                step += 1
            cycles, committed = cycles + 1, committed + min(step + 1, length - 2 - here)
            here += step + 1
    assert (found.tested, found.accepted, found.committed) == (tuple(tested), tuple(accepted), committed)
    assert found.tau > 1.2


def test_a_new_head_repeats_the_feature_up_to_the_norm_of_a_prefix_layer(borrowed, config):
    head = fresh_head(config, borrowed.lm_head, 0)
    features = torch.randn(1, 7, 16)
    features *= 2.0 / features.square().mean(-1, keepdim=True).sqrt()
    read = head.read_features(features, torch.arange(7)[None])
    states = head(1, read, torch.randn(1, 7, 2, 16))
    torch.testing.assert_close(states, features, rtol=0, atol=1e-5 if config.prefix is None else 0.1)


def test_a_run_that_was_stopped_gives_the_same_weights_and_leaves_a_head_that_is_read(trainer, config):
    whole, part, rest = (trainer(name, config=config, **PLAN) for name in ("whole", "part", "part"))
    whole.run(stop_after=9)
    part.run(stop_after=4)
    part.save()
    rest.restore(torch.load(part.spec.output / "checkpoint.pt", weights_only=True))
    rest.run(stop_after=5)
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(rest.head.state_dict()[name], tensor)
    rest._validate()
    assert read_head(rest.spec.output / "head").config == config


class Target:
    """The config of a target of 16 wide."""

    hidden_size, vocab_size, intermediate_size, num_attention_heads, num_key_value_heads = 16, 40, 24, 4, 2
    rms_norm_eps = 1e-5


def test_a_prefix_layer_has_the_sizes_of_the_target_where_none_are_given():
    spec = {"kind": "hydra", "draft_vocab_size": None, "num_heads": 3}
    assert head_sizes(HeadSpec(**spec), Target) == hydra(feature_scale=1.0)
    assert head_sizes(HeadSpec(**spec, prefix=True), Target) == hydra(feature_scale=1.0, prefix=LAYER)
    small = LAYER.model_copy(update={"intermediate_size": 8})
    given = head_sizes(HeadSpec(**spec, prefix=True, intermediate_size=8), Target)
    assert given == hydra(feature_scale=1.0, prefix=small)
    with pytest.raises(ValidationError, match="intermediate_size: a head of kind 'hydra' has none"):
        HeadSpec(**spec, intermediate_size=8)


def test_a_run_that_starts_from_a_head_has_its_sizes_and_refuses_lm_heads_with_biases(trainer, config):
    part = trainer("part", config=config, **PLAN)
    part._validate()
    spec = part.spec.model_copy(update={"start_from": str(part.spec.output / "head")})
    sized = sized_as_started(spec).head
    assert (sized.num_blocks, sized.train_lm_head, sized.prefix) == (config.num_blocks, config.own_lm_head, bool(config.prefix))
    assert sized.intermediate_size == (None if config.prefix is None else 24)
    assert continued(head_to_start_from(spec, (16, 40)), None).config == config
    other = trainer("other", config=config.model_copy(update={"own_lm_head": True, "lm_head_bias": True}), **PLAN)
    other._validate()
    spec = other.spec.model_copy(update={"start_from": str(other.spec.output / "head")})
    with pytest.raises(SpecError, match="LM heads have biases"):
        head_to_start_from(spec, (16, 40))


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_a_batch_shorter_than_a_draft_is_learnt_from_as_far_as_it_goes(batch, borrowed, kind):
    shape = {"hidden_size": 16, "vocab_size": 40, "num_heads": 5}
    head = fresh_head(MedusaConfig(**shape) if kind == "medusa" else HydraConfig(**shape), borrowed.lm_head, 0)
    data = batch(4, 3)
    steps = list(drafted(head, borrowed.embedding, data.token_ids, data.inputs[:, :-1], 5))
    assert [states.shape for states in steps] == [(2, 3, 16)] * 5
    found = batch_loss(head, borrowed, torch.arange(40), data, losses=LossSpec(regression=0.0, cross_entropy=1.0), steps=5)
    assert bool(torch.isfinite(found.total))
    assert found.rows == int(data.judged[:, 1:].sum())
