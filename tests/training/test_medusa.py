"""Heads that each learn one depth: their losses and their acceptance, written out; runs that stop and go on."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from specdec.heads.formats.reading import read_head
from specdec.heads.medusa import MedusaConfig
from specdec.training.head_spec import HeadSpec
from specdec.training.initialization import fresh_head
from specdec.training.sizes import head_sizes
from specdec.training.spec import LossSpec, TrainingSpec
from specdec.training.step import batch_loss
from specdec.training.validation import chain_acceptance

HEADS = 3
LOSSES = LossSpec(regression=0.0, cross_entropy=1.0, step_decay=0.5)
PLAN = {"head": {"kind": "medusa", "num_heads": HEADS}, "losses": None, "noise": {"width": 0.0}}
RECIPE = {"optimizer": {"learning_rate": 3e-2}, "budget": {"steps": 60}, "validate_every": 1000}


def medusa(**changes) -> MedusaConfig:
    return MedusaConfig(**{"hidden_size": 16, "vocab_size": 40, "num_heads": HEADS, **changes})


def shaken(config, borrowed):
    """A head that is no identity any more."""
    head = fresh_head(config, borrowed.lm_head, 0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return head


def rows_of(head, borrowed, feature) -> list[torch.Tensor]:
    """Logits of each head, one after the other."""
    found = []
    for number, blocks in enumerate(head.heads):
        states = feature
        for block in blocks:
            inner = block.linear.weight @ states + block.linear.bias
            states = states + inner * torch.sigmoid(inner)
        found.append((borrowed.lm_head if head.lm_heads is None else head.lm_heads[number].weight) @ states)
    return found


@pytest.mark.parametrize("changes", [{}, {"own_lm_head": True, "num_blocks": 2}])
def test_the_loss_is_the_cross_entropy_of_each_head_so_many_tokens_on_weighed_by_depth(batch, borrowed, changes):
    head = shaken(medusa(**changes), borrowed)
    data = batch(9, 7)
    found = batch_loss(head, borrowed, torch.arange(40), data, losses=LOSSES, steps=HEADS)
    total = torch.zeros(())
    for depth in range(HEADS):
        losses = []
        for row, length in enumerate((9, 7)):
            for place in range(length):
                label = place + 1 + depth
                if label < length and data.judged[row, label]:
                    said = functional.log_softmax(rows_of(head, borrowed, data.features[row, place])[depth], -1)
                    losses.append(-(data.top_logits[row, label].softmax(-1) * said[data.top_ids[row, label].long()]).sum())
        total = total + 0.5**depth * torch.stack(losses).mean()
    torch.testing.assert_close(found.total, total)
    found.total.backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in head.parameters())


def test_acceptance_is_what_a_chain_decoder_does_on_the_same_answers(batch, borrowed, trainer):
    run = trainer("some", config=medusa(num_blocks=2), **PLAN, **RECIPE)
    before = run.acceptance()
    run.run()
    data = batch(21, 16, seed=4)
    found = chain_acceptance(run.head, borrowed, [data])
    tested, accepted, cycles, committed = [0] * HEADS, [0] * HEADS, 0, 0
    for row, length in enumerate((21, 16)):
        ids, here = data.token_ids[row], 1
        while here < length - 2:
            drafts = [int(logits.argmax()) for logits in rows_of(run.head, borrowed, data.features[row, here])]
            good = 0
            for step, token in enumerate(drafts[: length - 2 - here]):
                tested[step] += 1
                if token != int(ids[here + 2 + step]):
                    break
                accepted[step] += 1
                good += 1
            cycles, committed = cycles + 1, committed + min(good + 1, length - 2 - here)
            here += good + 1
    assert (found.tested, found.accepted, found.committed) == (tuple(tested), tuple(accepted), committed)
    assert len(found.alpha) == HEADS
    assert run.acceptance().tau > before.tau + 0.3


@pytest.mark.parametrize("own", [False, True])
def test_a_run_that_was_stopped_gives_the_same_weights_and_leaves_a_head_that_is_read(trainer, own):
    config = medusa(own_lm_head=own, draft_vocab_size=None)
    whole = trainer("whole", config=config, **PLAN)
    whole.run(stop_after=9)
    part = trainer("part", config=config, **PLAN)
    part.run(stop_after=4)
    part.save()
    rest = trainer("part", config=config, **PLAN)
    rest.restore(torch.load(part.spec.output / "checkpoint.pt", weights_only=True))
    rest.run(stop_after=5)
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(rest.head.state_dict()[name], tensor)
    rest._validate()
    assert read_head(rest.spec.output / "head").config == config


class Target:
    """The config of a target of 16 wide."""

    hidden_size, vocab_size = 16, 40


def test_sizes_that_are_not_given_are_the_targets_and_those_of_the_authors_trees():
    assert head_sizes(HeadSpec(kind="medusa", draft_vocab_size=None), Target) == medusa(num_heads=4)
    given = {"num_heads": 2, "num_blocks": 3, "draft_vocab_size": 7, "train_lm_head": True}
    expected = medusa(num_heads=2, num_blocks=3, draft_vocab_size=7, own_lm_head=True)
    assert head_sizes(HeadSpec(kind="medusa", **given), Target) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [1, 2]}, "layers: a head of kind 'medusa' fuses none"),
        ({"intermediate_size": 8, "fc_bias": True}, "fc_bias, intermediate_size: a head of kind 'medusa' has none"),
        ({"kind": "eagle", "num_blocks": 2}, "num_blocks: a head of kind 'eagle' has none"),
    ],
)
def test_options_of_other_kinds_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        HeadSpec(**{"kind": "medusa", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": {"regression": 1.0}}, "Medusa predicts no feature"),
        ({"steps": {"start": 2, "end": 2}}, "all depths of 'medusa' are learnt at once"),
    ],
)
def test_losses_and_steps_that_mean_nothing_to_it_are_refused(trainer, changes, message):
    plan = trainer("any", config=medusa(), **PLAN).spec.model_dump(mode="json")
    with pytest.raises(ValidationError, match=message):
        TrainingSpec(**{**plan, **changes})
