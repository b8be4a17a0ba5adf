"""transformers' own decoding, on tiny random models: the same ids, counting and caps as ours."""

import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdec.bench.contender import Task, run_task
from specdec.bench.contenders import Choice, Lineup
from specdec.compose import load
from specdec.config.catalog import load_catalog
from specdec.errors import SpecdecWarning, SpecError
from specdec.sampling.params import SamplingParams

pytestmark = pytest.mark.slow

PEERS = ["transformers", "transformers-lookup-3", "transformers-assisted"]
GREEDY = SamplingParams()
CAP = 20
PROMPT = (5, 6, 7, 5, 6, 7, 5, 6)


def save_model(folder, *, layers, seed, stops=()):
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=40, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.4, bos_token_id=None,
        eos_token_id=list(stops) or None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, one that ends at a token of its own answer, and a draft model."""
    folder = tmp_path_factory.mktemp("models")
    target = save_model(folder / "target", layers=2, seed=0)
    draft = save_model(folder / "draft", layers=1, seed=1)
    answer = load("plain", target={"use": "huggingface", "model": target, "dtype": "float32"}).generate(
        [list(PROMPT)], max_new_tokens=CAP
    )[0]
    stop = next(t for i, t in enumerate(answer.tokens) if 4 < i < CAP - 1 and t not in answer.tokens[:i])
    return {"target": target, "draft": draft, "stopping": save_model(folder / "stopping", layers=2, seed=0, stops=[stop])}


@pytest.fixture(scope="module")
def contenders(models):
    """The contenders of a target by name, loaded once."""
    loaded = {}

    def make(target="target"):
        if target not in loaded:
            choice = Choice(["ngram-chain"], ["target.dtype=float32"], models[target], PEERS, models["draft"])
            loaded[target] = {c.name: c for c in Lineup(choice, load_catalog()).load(None).contenders}
        return loaded[target]

    return make


@pytest.mark.parametrize("target", ["target", "stopping"])
def test_all_ways_of_transformers_give_our_ids_up_to_the_stop_token_or_the_cap(contenders, target):
    found = contenders(target)
    task = Task((PROMPT,), (1,), CAP, GREEDY)
    ours = found["plain"].answer(task).outcomes[0].tokens
    assert len(ours) == CAP if target == "target" else 4 < len(ours) < CAP
    for name in PEERS:
        timed = found[name].answer(task)
        assert timed.outcomes[0].tokens == ours, name
        assert 0 < timed.first_token_seconds <= timed.seconds


def test_forwards_of_plain_generate_are_those_of_plain_decoding_and_lookup_needs_fewer(contenders):
    found = contenders()
    task = Task((PROMPT,), (1,), CAP, GREEDY)
    counts = {name: found[name].answer(task).outcomes[0].counts for name in ("plain", *PEERS)}
    assert counts["transformers"].forwards == counts["plain"].forwards == CAP - 1
    assert counts["transformers"].committed == counts["plain"].committed == CAP - 1
    for name in PEERS[1:]:
        assert counts[name].committed == sum(counts[name].steps) <= CAP - 1


def test_a_batch_of_prompts_of_other_lengths_gives_what_each_gives_alone(contenders):
    peer = contenders("stopping")["transformers"]
    prompts = (PROMPT, PROMPT[:3], (9, 10))
    together = peer.answer(Task(prompts, (1, 2, 3), CAP, GREEDY))
    alone = [peer.answer(Task((prompt,), (1,), CAP, GREEDY)).outcomes[0].tokens for prompt in prompts]
    assert [outcome.tokens for outcome in together.outcomes] == alone
    assert together.first_token_seconds is None
    queued = peer.answer(Task(prompts, (1, 2, 3), CAP, GREEDY, batch_size=2))
    assert [outcome.tokens for outcome in queued.outcomes] == alone


def test_ways_that_take_one_prompt_at_a_time_say_so(contenders):
    found = contenders()
    assert [found[name].max_batch for name in PEERS] == [None, 1, 1]


def test_the_cuts_of_the_benchmark_hold_and_no_others(contenders):
    found = contenders()
    task = Task((PROMPT,), (1,), CAP, SamplingParams(temperature=5.0, top_k=1))
    greedy = found["plain"].answer(Task((PROMPT,), (1,), CAP, GREEDY)).outcomes[0].tokens
    free = Task((PROMPT,), (1,), 30, SamplingParams(temperature=50.0))
    for name in PEERS:
        assert found[name].answer(task).outcomes[0].tokens == greedy, name
    assert len(set(found["transformers"].answer(free).outcomes[0].tokens)) > 10


def test_peers_have_a_model_of_their_own(contenders):
    found = contenders()
    ours = found["plain"].answer.__self__.decoder.target._runtime.call.model
    theirs = found["transformers"].answer.__self__.model
    assert ours is not theirs
    assert theirs.config._attn_implementation == "sdpa"


def test_a_draft_model_of_a_strategy_is_the_assistant(models):
    settings = [f"drafter.model.model={models['draft']}"]
    choice = Choice(["draft-model"], settings, models["target"])
    assert Lineup(choice, load_catalog()).names == ["plain", "draft-model", *("transformers", "transformers-lookup"), PEERS[2]]
    assert Lineup(Choice(["ngram-chain"], (), models["target"]), load_catalog()).names[2:] == [
        "transformers",
        "transformers-lookup",
    ]
    with pytest.raises(SpecError, match="--assistant names one"):
        Lineup(Choice(["ngram-chain"], (), models["target"], ["transformers-assisted"]), load_catalog())


def test_dtypes_are_checked_before_anything_is_loaded(models):
    choice = Choice(["ngram-chain"], (), models["target"], [])
    with pytest.raises(SpecError, match="dtype"):
        Lineup(choice, load_catalog(), ["float8"])
    loaded = Lineup(choice, load_catalog(), ["float64", "float32"]).load("float64")
    assert loaded.target.facts.dtype == torch.float64


def test_run_task_is_what_ours_are_measured_by(contenders):
    decoder = contenders()["plain"].answer.__self__.decoder
    assert run_task(decoder, Task((PROMPT,), (1,), 5, GREEDY)).outcomes[0].counts.forwards == 4


@pytest.mark.parametrize("stops", [[50256], [-1]])
def test_ids_that_are_no_tokens_neither_stop_nor_pad(tmp_path, stops):
    folder = save_model(tmp_path, layers=1, seed=0)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": stops}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecdecWarning)
        choice = Choice(["ngram-chain"], ["target.dtype=float32"], folder, ["transformers"], None)
        found = {c.name: c for c in Lineup(choice, load_catalog()).load(None).contenders}
    task = Task((PROMPT, PROMPT[:3]), (1, 2), 6, GREEDY, batch_size=2)
    ours, theirs = (found[name].answer(task).outcomes for name in ("plain", "transformers"))
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
