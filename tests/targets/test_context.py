"""The context of models whose rotary positions are scaled, and that one set of factors serves all of it."""

import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PhimoeConfig

import specdec
from specdec.errors import SpecdecError, SpecdecWarning, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.capability import declaration
from specdec.targets.context import context_of
from specdec.trees.draft_tree import Draw, TreeSketch, root_only

ORIGINAL = 32
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.25, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
DRAFTS = {"drafter": {"use": "ngram"}, "tree": {"use": "fixed", "widths": [2, 1, 1]}, "verifier": {"use": "match"}}
SELF = {
    "drafter": {"use": "model", "model": "target"},
    "tree": {"use": "fixed", "widths": [2, 1, 1]},
    "verifier": {"use": "match"},
}
PLAIN = {"drafter": {"use": "none"}, "tree": {"use": "chain", "length": 1}, "verifier": {"use": "match"}}


def long_rope(**changes):
    return {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0 + n for n in range(8)],
        **changes,
    }  # fmt: skip


def phi3():
    return Phi3Config(**SIZES, original_max_position_embeddings=ORIGINAL, rope_parameters=long_rope())


def saved(config, folder, seed=0):
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(phi3(), tmp_path_factory.mktemp("phi3"))


def loaded(folder, parts=PLAIN, **target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecdecWarning)
        return specdec.load({"target": {"use": "huggingface", "model": str(folder), "device": "cpu", **target}, **parts})


def prompts(count, length):
    source = torch.Generator().manual_seed(length)
    return torch.randint(3, 96, (count, length), generator=source).tolist()


def generated(folder, prompt, new):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def generate(folder):
    """What transformers answers, which computes its cache anew where the factors change."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    known = {}

    def answer(prompt, new=60):
        if (key := (*prompt, new)) not in known:
            ids = model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)
            known[key] = tuple(ids[0, len(prompt) :].tolist())
        return known[key]

    return answer


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        (PLAIN, {}),
        (SELF, {"prefill_chunk": 16}),
        pytest.param(PLAIN, {"prefill_chunk": 16}, marks=pytest.mark.slow),
        pytest.param(PLAIN, {"bitwise": True}, marks=pytest.mark.slow),
        pytest.param(DRAFTS, {}, marks=pytest.mark.slow),
        pytest.param(DRAFTS, {"bitwise": True}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_answers_over_the_original_length_are_those_of_transformers(folder, generate, parts, options):
    asked = [prompts(1, length)[0] for length in (20, 5, 30, 31, 32, 33, 60)]
    decoder = loaded(folder, parts, **options)
    answers = [answer.tokens for answer in decoder.generate(asked, max_new_tokens=40)]
    assert answers == [generate(prompt, 40) for prompt in asked]
    assert [answer.tokens for answer in decoder.generate(asked, max_new_tokens=40, batch_size=2)] == answers


def test_samples_of_one_prompt_cross_apart(folder):
    options = {"max_new_tokens": 30, "n": 3, "sampling": {"temperature": 1.0}, "seed": 5}
    answers = [loaded(folder, parts).generate(prompts(2, 20), **options) for parts in (PLAIN, DRAFTS)]
    assert len({answer.tokens for answer in answers[0]}) == 6
    assert [answer.tokens for answer in answers[1]] == [answer.tokens for answer in answers[0]]


def test_a_tree_over_the_crossing_has_the_logits_and_hidden_states_of_each_path_alone(folder, monkeypatch):
    target = loaded(folder).target
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prefix = prompts(1, ORIGINAL - 3)[0]
    sketch = TreeSketch(7, len(prefix))
    for parent in (0, 0, 1, 2, 3, 4, 5):
        sketch.add(parent, 11 + len(sketch))
    whole, part = sketch.freeze(Draw.DETERMINISTIC), TreeSketch(7, len(prefix))
    for node in range(1, 5):
        part.add(sketch.parents[node], sketch.tokens[node])
    state = target.prefill([prompts(1, 40)[0], prefix], Features(last=True, layers=(1,))).state
    scored = []
    for tree in (part.freeze(Draw.DETERMINISTIC), whole):
        scored.append(target.score(state, [root_only(3, 40), tree])[1])
    assert [one.first_node for one in scored] == [0, 5]
    for node in range(len(whole)):
        path = [*prefix, 7, *whole.path_tokens(node)]
        with torch.no_grad():
            expected = model(torch.tensor([path]), output_hidden_states=True)
        one, at = (scored[0], node) if node < 5 else (scored[1], node - 5)
        torch.testing.assert_close(one.logits[at], expected.logits[0, -1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.hidden.last[at], expected.hidden_states[-1][0, -1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.hidden.layers[at, 0], expected.hidden_states[1][0, -1], rtol=1e-4, atol=1e-4)
    target.commit(state, [[], whole.path(len(whole) - 1)])
    state.check_integrity()
    assert state.lengths == (41, len(prefix) + 5)


def test_a_cap_up_to_the_original_length_needs_one_set_of_factors(folder, generate):
    decoder = loaded(folder, DRAFTS, max_context=ORIGINAL)
    prompt = prompts(1, 20)[0]
    assert decoder.generate([prompt], max_new_tokens=60)[0].tokens == generate(prompt, 12)
    assert type(decoder.target._runtime).__name__ == "TransformerRuntime"


def test_a_draft_model_with_two_sets_of_factors_drafts_over_its_original_length(folder, tmp_path):
    target = saved(LlamaConfig(**SIZES), tmp_path)
    draft = {"use": "model", "model": {"use": "huggingface", "model": str(folder), "device": "cpu"}}
    drafted = loaded(target, {**PLAIN, "drafter": draft, "tree": {"use": "chain", "length": 3}})
    asked = prompts(3, 20)
    answers = drafted.generate(asked, max_new_tokens=40)
    assert [answer.tokens for answer in answers] == [one.tokens for one in loaded(target).generate(asked, max_new_tokens=40)]
    assert all(record.drafted == 3 for answer in answers for record in answer.records[:-3])


def test_without_a_rotary_module_that_is_known_the_context_ends_at_the_original_length(folder, monkeypatch):
    monkeypatch.setattr("specdec.targets.rotary._has_two_sets", lambda module: False)
    words = r"ends after 32 tokens \(beyond original_max_position_embeddings \(32\) its rotary positions take other factors"
    with pytest.warns(SpecdecWarning, match=words):
        decoder = specdec.load({"target": {"use": "huggingface", "model": str(folder), "device": "cpu"}, **PLAIN})
    with pytest.raises(SpecdecError, match=r"60 tokens; the target's context holds 32 tokens \(beyond original"):
        decoder.generate(prompts(1, 60))


def test_a_model_that_scales_each_forward_by_its_length_keeps_its_own_limit(tmp_path):
    config = LlamaConfig(
        **{**SIZES, "max_position_embeddings": ORIGINAL},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    )
    decoder = loaded(saved(config, tmp_path), max_context=100)
    assert decoder.target.facts.max_positions == ORIGINAL
    with pytest.raises(SpecdecError, match=r"holds 32 tokens \(.*'dynamic'"):
        decoder.generate(prompts(1, 40))


def test_a_rotary_module_of_another_make_has_two_sets_too(tmp_path):
    config = PhimoeConfig(
        **SIZES, num_local_experts=2, num_experts_per_tok=1,
        rope_parameters=long_rope(short_mscale=1.1, long_mscale=1.3, original_max_position_embeddings=ORIGINAL),
    )  # fmt: skip
    folder = saved(config, tmp_path)
    for prompt in (prompts(1, 50)[0], prompts(1, 26)[0]):
        answer = loaded(folder, DRAFTS, prefill_chunk=16).generate([prompt], max_new_tokens=12)[0]
        assert list(answer.tokens) == generated(folder, prompt, 12)


def test_the_probe_finds_factors_that_change_within_the_context(folder, monkeypatch):
    monkeypatch.setattr("specdec.targets.assembly.context_of", lambda text, cap: context_of(LlamaConfig(**SIZES), cap))
    with pytest.raises(TargetMismatch, match="near position 32 a token's logits depend on what else is in its forward"):
        loaded(folder)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("settings", "cap", "expected"),
    [
        ({**YARN, "original_max_position_embeddings": 64}, None, 256),
        ({**YARN, "original_max_position_embeddings": 64}, 100, 100),
        ({**YARN, "original_max_position_embeddings": 64}, 1000, 256),
        ({**YARN, "original_max_position_embeddings": 32}, None, 128),
        (YARN, None, 256),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, None, 64),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, 200, 200),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, 1000, 256),
        ({"rope_type": "default", "rope_theta": 1e4}, 1000, 64),
    ],
)  # fmt: skip
def test_scaled_positions_reach_as_far_as_they_are_stretched(settings, cap, expected):
    config = LlamaConfig(**{**SIZES, "max_position_embeddings": 64}, rope_parameters=dict(settings))
    assert declaration(config, attention="sdpa", max_context=cap).max_positions == expected


def test_a_model_with_yarn_decodes_beyond_its_unscaled_length_as_transformers_does(tmp_path):
    config = LlamaConfig(
        **{**SIZES, "max_position_embeddings": ORIGINAL}, rope_parameters={**YARN, "original_max_position_embeddings": ORIGINAL}
    )
    folder = saved(config, tmp_path)
    prompt = prompts(1, 40)[0]
    answer = loaded(folder, DRAFTS, prefill_chunk=16).generate([prompt], max_new_tokens=30)[0]
    assert list(answer.tokens) == generated(folder, prompt, 30)
