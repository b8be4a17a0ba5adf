"""Distilling a draft model: its samples and its loss by hand, exact resumption, and the gain in acceptance."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.errors import CheckpointError, SpecError
from specdec.training.conversations import Conversation
from specdec.training.draft_model import acceptance, distillation_loss, sampled, texts_of
from specdec.training.draft_model_run import Distillation, Pair
from specdec.training.draft_model_spec import DraftModelSpec
from specdec.training.reading import read_training_spec

CPU = torch.device("cpu")
VOCAB = 24


def llama(seed, layers, width, spread=0.02):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=spread, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def answered(target, count, seed, length=16) -> list[Conversation]:
    """Prompts of three tokens that the target goes on with at temperature 1."""
    draws = torch.Generator().manual_seed(seed)
    asked = torch.randint(VOCAB, (count, 3), generator=draws).tolist()
    prompts = [Conversation((*ids, 0), (False, False, False, True), "") for ids in asked]
    return sampled(target, prompts, length, 1.0, frozenset(), draws)


def made(tmp_path, **changes) -> DraftModelSpec:
    plan = {
        "name": "tiny", "target": {"use": "builtin"}, "output": tmp_path, "data": {"path": tmp_path / "own.jsonl"},
        "head": {"kind": "model", "model": "draft"}, "steps": 8, "conversations_per_step": 4, "max_new_tokens": 6,
        "learning_rate": 1e-2, "validate_every": 1000, "checkpoint_every": 1000, **changes,
    }  # fmt: skip
    return DraftModelSpec(**plan)


def distillation(spec, seed=1, learnt=24):
    target = llama(0, 2, 16, 0.4)
    pair = Pair(llama(seed, 1, 16), target, frozenset(), lambda folder: None)
    return Distillation(spec, pair, answered(target, learnt, seed), answered(target, 12, 100 + seed), lambda record: None)


def test_samples_of_a_padded_batch_are_those_of_each_prompt_alone_and_end_where_they_should():
    model = llama(0, 2, 16, 0.4)
    asked = [Conversation((*ids, 0), (False,) * len(ids) + (True,), "") for ids in ((3, 4, 5, 6), (7,), (8, 9))]
    cold = {"temperature": 1e-6, "draws": torch.Generator().manual_seed(0)}
    stop = sampled(model, asked[:1], 6, stops=frozenset(), **cold)[0].token_ids[6]
    together = sampled(model, asked, 6, stops=frozenset({stop}), **cold)
    for one, alone in zip(together, asked, strict=True):
        ids = list(alone.token_ids[:-1])
        while len(ids) < len(alone.token_ids) + 5:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == stop:
                break
        assert list(one.token_ids) == ids
        assert one.spoken == tuple(place >= len(alone.token_ids) - 1 for place in range(len(ids)))


def test_samples_follow_the_models_distribution():
    model = llama(0, 1, 8, 0.4)
    asked = [Conversation((5, 0), (False, True), "")] * 4000
    said = sampled(model, asked, 1, 0.7, frozenset(), torch.Generator().manual_seed(1))
    seen = torch.bincount(torch.tensor([one.token_ids[-1] for one in said]), minlength=VOCAB) / 4000
    expected = (model(input_ids=torch.tensor([[5]])).logits[0, -1].detach() / 0.7).softmax(-1)
    assert float((seen - expected).abs().sum()) / 2 < 0.05


@pytest.mark.parametrize("kind", ["kl", "tv"])
def test_the_loss_is_the_mean_over_the_words_of_the_answers_and_its_gradient_is_that_of_autograd(kind):
    target, draft = llama(0, 2, 16, 0.4), llama(1, 1, 16, 0.2)
    texts = texts_of(answered(target, 3, 5, 7), CPU)
    surrogate, loss = distillation_loss(draft, target, texts, kind)
    surrogate.backward()
    ours = [p.grad.clone() for p in draft.parameters()]
    draft.zero_grad()
    p = target(input_ids=texts.token_ids).logits.softmax(-1).detach()[texts.judged]
    q = draft(input_ids=texts.token_ids).logits.softmax(-1)[texts.judged]
    plain = (p * (p / q).log()).sum(-1) if kind == "kl" else (p - q).abs().sum(-1) / 2
    plain.mean().backward()
    assert int(texts.judged.sum()) == 3 * 7
    assert loss == pytest.approx(float(plain.detach().mean()), rel=1e-5)
    for mine, parameter in zip(ours, draft.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-6)


def test_a_model_accepts_itself_and_acceptance_is_one_minus_total_variation():
    target, draft = llama(0, 2, 16, 0.4), llama(1, 1, 16, 0.2)
    one = answered(target, 1, 5, 7)
    assert acceptance(target, target, [texts_of(one, CPU)]).alpha == pytest.approx(1.0, abs=1e-5)
    texts = texts_of(one, CPU)
    found = acceptance(draft, target, [texts])
    assert found.alpha == pytest.approx(1 - distillation_loss(draft, target, texts, "tv")[1], rel=1e-5)
    assert found.positions == 7


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
def test_a_run_that_was_stopped_goes_on_exactly(tmp_path, own):
    whole = distillation(made(tmp_path / "whole", own_samples=own))
    whole.run()
    part = distillation(made(tmp_path / "part", own_samples=own))
    part.run(stop_after=3)
    part.save()
    rest = distillation(made(tmp_path / "part", own_samples=own))
    rest.restore()
    assert rest.step == 3
    rest.run()
    for one, other in zip(whole.pair.draft.parameters(), rest.pair.draft.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(SpecError, match=r"temperature was 1\.0, is 0\.5"):
        distillation(made(tmp_path / "part", own_samples=own, temperature=0.5)).restore()
    (tmp_path / "part" / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="delete it to start anew"):
        distillation(made(tmp_path / "part", own_samples=own)).restore()


@pytest.mark.slow
def test_distillation_gains_a_tenth_of_held_out_acceptance_with_three_seeds(tmp_path):
    for seed in range(1, 4):
        run = distillation(made(tmp_path / str(seed), steps=120, seed=seed, conversations_per_step=8), seed, 200)
        before = run.validate()
        run.run()
        after = acceptance(run.pair.draft, run.pair.target, run.held_out)
        by_text = torch.tensor(after.by_text) - torch.tensor(before.by_text)
        assert after.alpha - before.alpha >= 0.10
        assert float(by_text.mean() - 2.2 * by_text.std() / len(by_text) ** 0.5) > 0


def test_a_spec_of_kind_model_is_read_with_paths_beside_it(tmp_path):
    (tmp_path / "draft").mkdir()
    path = tmp_path / "spec.yaml"
    plan = {"name": "x", "target": {"use": "builtin"}, "output": "run", "data": {"path": "own.jsonl"}, "steps": 3}
    path.write_text(json.dumps({**plan, "head": {"kind": "model", "model": "draft"}}))
    spec = read_training_spec(path)
    assert isinstance(spec, DraftModelSpec)
    assert (spec.head.model, spec.data.path) == (str(tmp_path / "draft"), tmp_path / "own.jsonl")
    with pytest.raises(SpecError, match="own_samples"):
        read_training_spec(path, ("own_samples=2",))
