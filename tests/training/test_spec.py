"""Every option of a training spec does what it says: one that is read and ignored fails here."""

import pytest
import torch
from pydantic import BaseModel
from transformers import GPT2Config, OPTConfig

from specdec.errors import SpecdecWarning, SpecError
from specdec.heads.config import Inputs
from specdec.heads.eagle import EagleHead
from specdec.training.dataset import FeatureSet
from specdec.training.head_spec import HeadSpec
from specdec.training.initialization import draft_ids, fresh_head, fused_layers
from specdec.training.optimizer import optimizers
from specdec.training.reading import read_training_spec
from specdec.training.sizes import head_config, head_sizes
from specdec.training.spec import NoiseSpec, OptimizerSpec, TrainingSpec
from specdec.training.step import draw_noise

UNROLLED = {"steps": {"start": 2, "end": 2}}
MUON = {"optimizer": {"use": "muon"}}
LEARNING = {
    "losses.regression": ({}, {"losses": {"regression": 0.3}}),
    "losses.cross_entropy": ({}, {"losses": {"cross_entropy": 0.5}}),
    "losses.row_loss": ({}, {"losses": {"row_loss": "lk_hybrid"}}),
    "losses.step_decay": (UNROLLED, {**UNROLLED, "losses": {"step_decay": 0.5}}),
    "noise.width": ({"noise": {"width": 0.1}}, {"noise": {"width": 0.4}}),
    "noise.by_length": ({"noise": {"width": 0.1}}, {"noise": {"width": 0.1, "by_length": False}}),
    "steps.start": ({}, {"steps": {"start": 2, "end": 1, "switch_at": 0.1}}),
    "steps.end": ({}, {"steps": {"start": 1, "end": 2, "switch_at": 0.05}}),
    "steps.switch_at": ({"steps": {"end": 2, "switch_at": 0.05}}, {"steps": {"end": 2, "switch_at": 0.9}}),
    "optimizer.use": ({}, MUON),
    "optimizer.learning_rate": ({}, {"optimizer": {"learning_rate": 2e-3}}),
    "optimizer.muon_learning_rate": (MUON, {"optimizer": {"use": "muon", "muon_learning_rate": 0.03}}),
    "optimizer.betas": ({}, {"optimizer": {"betas": [0.5, 0.9]}}),
    "optimizer.weight_decay": ({}, {"optimizer": {"weight_decay": 0.5}}),
    "optimizer.clip_norm": ({}, {"optimizer": {"clip_norm": 1e-9}}),
    "optimizer.warmup": ({}, {"optimizer": {"warmup": 0.9}}),
    "optimizer.final_share": ({}, {"optimizer": {"final_share": 0.9}}),
    "tokens_per_batch": ({}, {"tokens_per_batch": 20}),
    "autocast": ({}, {"autocast": True}),
    "seed": ({}, {"seed": 1}),
}
"""Two spellings of a run that must end in different weights."""

SHAPE = {
    "head.inputs": ("feature", "inputs", Inputs.FEATURE),
    "head.intermediate_size": (20, "intermediate_size", 20),
    "head.num_attention_heads": (2, "num_attention_heads", 2),
    "head.num_key_value_heads": (1, "num_key_value_heads", 1),
    "head.fc_bias": (True, "fc_bias", True),
    "head.draft_vocab_size": (7, "draft_vocab_size", 7),
    "head.train_lm_head": (True, "own_lm_head", True),
    "head.rope_theta": (5e5, "rope_theta", 5e5),
}
"""Value, and what it makes of the head's config."""

ELSEWHERE = {
    *("start_from", "head.num_heads", "head.num_blocks", "head.prefix", "anchors_per_conversation"),
    *(f"head.{name}" for name in ("num_layers", "block_size", "mask_token_id", "causal", "from_anchor", "markov_rank")),
    *("name", "head.kind", "head.layers", "validate_every", "checkpoint_every", "budget.steps", "budget.seconds"),
    *(f"target.{name}" for name in ("use", "model", "dtype", "attention", "device", "revision", "trust_remote_code")),
    *(f"data.sources.{name}" for name in ("path", "max_tokens", "repeat", "temperature")),
    *(
        f"data.{name}"
        for name in ("validate_on", "held_out_share", "held_out_at_most", "tokens_per_shard", "top_k", "chat_template_kwargs")
    ),
    *("data.keep_layers", "data.first_tokens", "data.tokens_per_epoch", "features", "output", "data_seed"),
}
"""Tested below, in test_features.py, test_medusa.py, test_block.py; by commands in test_end_to_end.py, test_killed_runs.py."""


class Target:
    """The config of a target of 16 wide."""

    hidden_size, intermediate_size, num_attention_heads, num_key_value_heads = 16, 24, 4, 2
    vocab_size, rms_norm_eps = 40, 1e-5


def weights(run):
    return torch.cat([p.detach().flatten() for p in run.head.parameters()])


def options_of(model, prefix=""):
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(t, type)]
        parts = [t for t in inner if issubclass(t, BaseModel)]
        yield from options_of(parts[0], f"{prefix}{name}.") if parts else [f"{prefix}{name}"]


def test_no_option_is_forgotten_here():
    assert set(options_of(TrainingSpec)) == LEARNING.keys() | SHAPE.keys() | ELSEWHERE


@pytest.mark.parametrize("option", LEARNING)
def test_an_option_of_learning_changes_what_is_learnt(trainer, option):
    learnt = []
    for place, changes in enumerate((*LEARNING[option], LEARNING[option][1])):
        run = trainer(f"run-{place}", **{"noise": {"width": 0.0}, **changes})
        run.run(stop_after=4)
        learnt.append(weights(run))
    assert not torch.equal(learnt[0], learnt[1])
    assert torch.equal(learnt[1], learnt[2])


@pytest.fixture
def data(shard, tmp_path):
    return FeatureSet([shard(tmp_path / "own-0000.safetensors", [9, 12, 17])], layers=False)


@pytest.mark.parametrize("option", SHAPE)
def test_an_option_of_the_heads_shape_reaches_its_config_and_its_weights(option, data, borrowed):
    value, field, wanted = SHAPE[option]
    plain, changed = (
        head_config(HeadSpec(**{"draft_vocab_size": None, **some}), Target, borrowed.embedding, data)
        for some in ({}, {option.removeprefix("head."): value})
    )
    assert getattr(changed, field) == wanted != getattr(plain, field)
    lent = borrowed.lm_head[: changed.output_size]
    assert fresh_head(changed, lent, 0).config == changed


def test_sizes_that_do_not_fit_are_one_line(data, borrowed):
    with pytest.raises(SpecError, match="4 heads cannot share 3"):
        head_config(HeadSpec(num_key_value_heads=3), Target, borrowed.embedding, data)


def test_sizes_that_gpt2_has_under_other_names_or_not_at_all_are_made_up():
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4)
    sizes = head_sizes(HeadSpec(draft_vocab_size=None), config)
    assert (sizes.hidden_size, sizes.intermediate_size, sizes.head_dim) == (32, 128, 8)
    assert (sizes.num_attention_heads, sizes.num_key_value_heads, sizes.rms_norm_eps) == (4, 4, 1e-5)
    assert head_sizes(HeadSpec(), GPT2Config(n_inner=50)).intermediate_size == 50
    assert head_sizes(HeadSpec(), OPTConfig(ffn_dim=70)).intermediate_size == 70


def test_the_kind_decides_on_layers_losses_and_lm_head(data, borrowed):
    assert fused_layers(HeadSpec(), 30) == ()
    assert fused_layers(HeadSpec(kind="eagle3"), 30) == (2, 15, 27)
    assert fused_layers(HeadSpec(kind="eagle3", layers=(1, 5)), 30) == (1, 5)
    third = head_config(HeadSpec(kind="eagle3", layers=(1, 2)), Target, borrowed.embedding, data)
    assert (third.kind, third.own_lm_head) == ("eagle3", True)
    for layers in ((1, 1), (1, 3)):
        with pytest.raises(SpecError, match="layers: "):
            fused_layers(HeadSpec(kind="eagle3", layers=layers), 2)


@pytest.mark.parametrize("count", range(1, 13))
def test_unset_layers_are_different_ones_of_any_target(count):
    layers = fused_layers(HeadSpec(kind="eagle3"), count)
    assert list(layers) == sorted(set(layers))
    assert len(layers) == min(3, count + 1)
    assert 0 <= layers[0] <= layers[-1] <= count
    assert count < 7 or layers == (2, count // 2, count - 3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("head={layers: [1, 2]}", "kind: eagle3 would work"),
        ("head={kind: eagle3, inputs: token}", "EAGLE-3 takes features and shifted tokens"),
        ("head={kind: eagle3, fc_bias: true}", "has no bias"),
        ("head={kind: eagle3, train_lm_head: false}", "always trains an LM head"),
        ("target={use: huggingface}", "needs a model"),
        ("target={use: builtin, model: x}", "takes none"),
        ("target={use: tabular}", "builtin"),
        ("target={use: builtin, max_context: 5}", "unknown key"),
        ("data.validate_on=other", "no source is called 'other'"),
        ("optimizer.betas=[0.9, 1.5]", "betas"),
        ("budget.seconds=5", "either steps or seconds"),
        ("data.keep_layers=[-3]", "keep_layers"),
        ("losses={regression: 0, cross_entropy: 0}", "nothing would be learnt"),
        ("losses={regression: .inf}", "finite"),
        ("head={kind: eagle3, layers: [-1]}", "layers"),
        ("target={use: builtin, attention: flash}", "sdpa"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(small_yaml, setting, message):
    with pytest.raises(SpecError, match=message):
        read_training_spec(small_yaml, (setting,))


def test_losses_are_the_published_ones_of_the_kind_and_eagle3_has_no_regression(small_yaml):
    assert read_training_spec(small_yaml).loss_weights.model_dump() == {
        "regression": 1.0,
        "cross_entropy": 0.1,
        "row_loss": "ce",
        "step_decay": 0.8,
    }
    third = read_training_spec(small_yaml, ("head.kind=eagle3",)).loss_weights
    assert (third.regression, third.cross_entropy) == (0.0, 1.0)
    with pytest.raises(SpecError, match="predicts no feature"):
        read_training_spec(small_yaml, ("head.kind=eagle3", "losses.regression=1.0"))
    small_yaml.write_text(small_yaml.read_text() + "losses: {regression: 0.3}\n")
    with pytest.raises(SpecError, match="or losses: null"):
        read_training_spec(small_yaml, ("head.kind=eagle3",))
    assert read_training_spec(small_yaml, ("head.kind=eagle3", "losses=null")).loss_weights == third


def test_noise_is_as_wide_as_said_and_scaled_by_each_conversations_own_length(batch):
    pair = batch(40, 10)
    plain = draw_noise(NoiseSpec(width=0.2, by_length=False), pair, torch.Generator().manual_seed(0))
    scaled = draw_noise(NoiseSpec(width=0.2), pair, torch.Generator().manual_seed(0))
    assert 0.09 < float(plain.abs().max()) <= 0.1
    assert abs(float(plain.mean())) < 0.01
    torch.testing.assert_close(scaled[0], plain[0] * (512 / 40))
    torch.testing.assert_close(scaled[1], plain[1] * (512 / 10))
    assert draw_noise(NoiseSpec(), pair, torch.Generator()) is None
    assert draw_noise(NoiseSpec(width=0.2), batch(9, 7, layers=True), torch.Generator()).shape == (2, 8, 2, 16)


def test_norms_biases_and_the_lm_head_are_not_decayed_and_muon_takes_the_other_matrices(head_sizes, borrowed):
    head = fresh_head(head_sizes(own_lm_head=True, fc_bias=True), borrowed.lm_head, 0)
    adamw, muon = optimizers(head, OptimizerSpec(use="muon", weight_decay=0.3))
    undecayed = {id(p) for p in adamw.param_groups[0]["params"]}
    named = {name for name, parameter in head.named_parameters() if id(parameter) in undecayed}
    assert named == {"fc.bias", "layers.0.post_attention_layernorm.weight", "lm_head.weight"}
    assert adamw.param_groups[0]["weight_decay"] == 0.0
    assert (len(adamw.param_groups), muon.param_groups[0]["weight_decay"]) == (1, 0.3)


def test_runs_are_validated_and_checkpointed_as_often_as_said(trainer):
    run = trainer("often", budget={"steps": 7}, validate_every=3, checkpoint_every=2)
    saved = []
    run.save = lambda: saved.append(run.step)
    run.run()
    assert [record["step"] for record in run.log if "tau" in record] == [3, 6, 7]
    assert saved == [0, 2, 4, 6, 7]


def test_a_budget_of_seconds_is_of_training_steps_over_all_restarts(trainer):
    first = trainer("timed", budget={"seconds": 0.4}, validate_every=10**6)
    first.run(stop_after=1)
    first.seconds = 0.3
    first.save()
    rest = trainer("timed", budget={"seconds": 0.4}, validate_every=10**6)
    rest.restore(torch.load(first.spec.output / "checkpoint.pt", weights_only=True))
    rest.run()
    assert 0.4 <= rest.seconds < 0.7
    assert rest.step > 1


def test_an_lm_head_of_ones_own_starts_as_the_targets_and_learns(trainer):
    run = trainer("own", own_lm_head=True, optimizer={"learning_rate": 1e-2})
    start = run.head.lm_head.weight.detach().clone()
    assert torch.equal(start, run.borrowed.lm_head)
    run.run(stop_after=3)
    assert isinstance(run.head, EagleHead)
    assert not torch.equal(run.head.lm_head.weight, start)
    assert torch.equal(run.borrowed.lm_head, start)


def test_data_of_fewer_tokens_than_the_vocabulary_fills_it_up_with_the_lowest_and_warns():
    counts = torch.zeros(16, dtype=torch.long)
    counts[[3, 5, 8, 9, 15]] = torch.tensor([4, 1, 2, 9, 1])
    with pytest.warns(SpecdecWarning, match="only 5 tokens occur"):
        assert draft_ids(HeadSpec(draft_vocab_size=8), counts).tolist() == [0, 1, 2, 3, 5, 8, 9, 15]
    assert draft_ids(HeadSpec(draft_vocab_size=4), counts).tolist() == [3, 5, 8, 9]
    assert draft_ids(HeadSpec(draft_vocab_size=None), counts) is None
    with pytest.raises(SpecError, match="17 of 16 tokens"):
        draft_ids(HeadSpec(draft_vocab_size=17), counts)
