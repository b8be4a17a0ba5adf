"""One-pass heads in training: their rows are those of drafting, and runs learn, stop and go on."""

import pytest
import torch
from pydantic import ValidationError

from specdec.heads.block import BlockConfig
from specdec.heads.block_session import BlockSession, DraftingBlock
from specdec.heads.formats.reading import read_head
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import HiddenStates
from specdec.training.block_rows import blocks_mask, draw_anchors
from specdec.training.borrowed import logit_factors
from specdec.training.head_spec import HeadSpec
from specdec.training.initialization import fresh_head
from specdec.training.loop import Trainer
from specdec.training.sizes import head_sizes
from specdec.training.spec import LossSpec, TrainingSpec
from specdec.training.step import batch_loss
from specdec.training.unroll import drafted
from specdec.trees.draft_tree import TreeSketch

PLAN = {"head": {"kind": "block"}, "losses": None, "noise": {"width": 0.0}}
RECIPE = {"optimizer": {"learning_rate": 2e-2}, "budget": {"steps": 100}, "tokens_per_batch": 400, "validate_every": 1000}
KINDS = {
    "dflash": {"num_layers": 2},
    "jetspec": {"causal": True},
    "dspark": {"from_anchor": True, "markov_rank": 5},
}


def block(**changes) -> BlockConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    return BlockConfig(**{**sizes, "vocab_size": 40, "layers": (1, 2), "block_size": 4, "mask_token_id": 39, **changes})


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def head(request, borrowed):
    made = fresh_head(block(**request.param), borrowed.lm_head, 0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made


def session_rows(head, borrowed, ids, layers, anchor) -> torch.Tensor:
    """[depths, vocab] that drafting gives behind this anchor when the text goes on as it does."""
    drafting = DraftingBlock(
        head, lambda tokens: borrowed.embedding[tokens], lambda states: states @ borrowed.lm_head.T, None,
        torch.float32, torch.device("cpu"), "head",
    )  # fmt: skip
    text = ids[: anchor + 1].tolist()
    session = BlockSession(drafting, [DraftStart(tuple(text[:-1]), text[-1], HiddenStates(None, layers[:anchor]))])
    tree, node = TreeSketch(text[-1], head.config.depths), 0
    for token in ids[anchor + 1 : anchor + head.config.depths].tolist():
        node = tree.add(node, token)
    (answer,) = session.expand([Frontier(tree, tuple(range(len(tree.tokens))))])
    return answer.logits


@torch.no_grad()
def test_rows_in_training_are_those_of_drafting_behind_the_same_anchor(head, borrowed, batch, monkeypatch):
    monkeypatch.setattr("specdec.training.block_rows.ANCHORS_AT_ONCE", 3)
    data = batch(13, 9, layers=True)
    steps = list(drafted(head, borrowed.embedding, data.token_ids, data.inputs[:, :-1], head.config.depths))
    compared = 0
    for row, length in enumerate((13, 9)):
        for anchor in range(1, length):
            rows = session_rows(head, borrowed, data.token_ids[row, :length], data.inputs[row], anchor)
            for step, expected in enumerate(rows):
                place = anchor - 1 + step
                if place >= data.token_ids.shape[1] - 1:
                    continue
                before = data.token_ids[row, place + 1][None]
                states, factor = logit_factors(head, borrowed, step, steps[step][row, place][None], before)
                torch.testing.assert_close((states @ factor.T)[0], expected, rtol=1e-5, atol=1e-5)
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_sees_the_context_before_its_anchor_and_itself(causal):
    anchors, tokens, size = torch.tensor([[1, 3, 4], [2, 5, 1]]), 6, 3
    mask = blocks_mask(anchors, tokens, size, causal=causal)
    assert mask.shape == (2, 1, 9, 15)
    for text in range(2):
        for row in range(9):
            of, at = divmod(row, size)
            context = set(range(int(anchors[text, of])))
            own = {tokens + of * size + other for other in range(at + 1 if causal else size)}
            assert set(mask[text, 0, row].nonzero()[:, 0].tolist()) == context | own


def test_what_stands_behind_an_anchor_changes_nothing_but_the_bias(head, borrowed, batch):
    data = batch(12, layers=True)
    ids, inputs = data.token_ids.clone(), data.inputs.clone()
    ids[:, 6:], inputs[:, 5:] = 3, 7.0
    begun = torch.zeros((1, 11), dtype=torch.bool)
    begun[0, [2, 4]] = True
    first = list(drafted(head, borrowed.embedding, data.token_ids, data.inputs[:, :-1], head.config.depths, begun))
    other = list(drafted(head, borrowed.embedding, ids, inputs[:, :-1], head.config.depths, begun))
    for step, (one, two) in enumerate(zip(first, other, strict=True)):
        assert torch.equal(one, two)
        assert one.abs().sum(-1).nonzero()[:, 1].tolist() == [2 + step, 4 + step]


def test_only_drawn_anchors_are_learnt_from_and_as_many_as_said(head, borrowed, batch):
    data = batch(13, 9, layers=True)
    judged = data.judged[:, 1:]
    begun = draw_anchors(head, judged, 3, torch.Generator().manual_seed(0))
    assert begun.sum(1).tolist() == [3, 3]
    assert not bool((begun & ~judged).any())
    losses = LossSpec(regression=0.0, cross_entropy=1.0, step_decay=0.5)
    parts = {"losses": losses, "steps": 1}
    found = batch_loss(head, borrowed, torch.arange(40), data, begun=begun, **parts)
    assert found.rows == 6
    singles = []
    for row, place in begun.nonzero().tolist():
        alone = torch.zeros_like(begun)
        alone[row, place] = True
        singles.append(batch_loss(head, borrowed, torch.arange(40), data, begun=alone, **parts).total)
    torch.testing.assert_close(found.total, torch.stack(singles).mean(), rtol=1e-5, atol=1e-6)
    assert torch.equal(draw_anchors(head, judged, 99, torch.Generator()), judged)


@pytest.fixture
def learner(trainer):
    """A trainer whose held-out conversations come with the inputs of layers."""

    def make(output, config, **changes) -> Trainer:
        run = trainer(output, config=config, **{**PLAN, **changes})
        run.held_out._inputs = "layers"
        run.held_out._columns = [
            {**columns, "layers": columns["features"][:, None].repeat(1, 2, 1)} for columns in run.held_out._columns
        ]
        return run

    return make


@pytest.mark.parametrize("changes", [{}, {"causal": True, "from_anchor": True, "markov_rank": 4}], ids=["dflash", "dspark"])
def test_a_run_lowers_the_loss_and_raises_acceptance(learner, shard, tmp_path, changes):
    run = learner("some", block(**changes), **RECIPE)
    path = shard(tmp_path / "more-0000.safetensors", [20] * 40, 3)
    run._shards = lambda epoch: [path]
    before = run.acceptance()
    run.run()
    after = run.acceptance()
    losses = [record["loss"] for record in run.log if "loss" in record]
    assert losses[-1] < losses[0] - 0.5
    assert after.tau > before.tau + 0.5
    assert len(after.alpha) == (4 if changes else 3)


def test_a_run_that_was_stopped_gives_the_same_weights_and_leaves_a_head_that_is_read(learner):
    config = block(causal=True, markov_rank=3)
    anchors = {"anchors_per_conversation": 4}
    whole = learner("whole", config, **anchors)
    whole.run(stop_after=9)
    part = learner("part", config, **anchors)
    part.run(stop_after=4)
    part.save()
    rest = learner("part", config, **anchors)
    rest.restore(torch.load(part.spec.output / "checkpoint.pt", weights_only=True))
    rest.run(stop_after=5)
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(rest.head.state_dict()[name], tensor)
    rest._validate()
    assert read_head(rest.spec.output / "head").config == config
    other = learner("other", config, anchors_per_conversation=3)
    other.run(stop_after=9)
    assert not torch.equal(other.head.fc.weight, whole.head.fc.weight)


class Target:
    """The config of a target of 16 wide."""

    hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, vocab_size = 16, 24, 4, 2, 40


def test_sizes_that_are_not_given_are_the_targets_and_a_block_is_of_eight_rows():
    assert head_sizes(HeadSpec(kind="block", layers=(1, 2), draft_vocab_size=None), Target) == block(block_size=8)
    own = {"num_layers": 2, "mask_token_id": 5, "causal": True, "from_anchor": True, "markov_rank": 3, "block_size": 5}
    given = {**own, "draft_vocab_size": 7, "intermediate_size": 8}
    assert head_sizes(HeadSpec(kind="block", layers=(1, 2), **given), Target) == block(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"kind": "block", "num_heads": 3, "train_lm_head": True}}, "num_heads: a head of kind 'block' has none"),
        ({"head": {"kind": "eagle", "causal": True}}, "causal: a head of kind 'eagle' has none"),
        ({"losses": {"regression": 1.0}}, "a one-pass head predicts no feature"),
        ({"steps": {"start": 2, "end": 2}}, "all depths of 'block' are learnt at once"),
        ({"head": {"kind": "eagle"}, "anchors_per_conversation": 5}, "only heads of kind 'block' learn from drawn anchors"),
    ],
)
def test_what_means_nothing_to_it_is_refused(trainer, changes, message):
    plan = trainer("any", config=block(), **PLAN).spec.model_dump(mode="json")
    with pytest.raises(ValidationError, match=message):
        TrainingSpec(**{**plan, **changes})
