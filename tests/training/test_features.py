"""Features on disk against the model that they were computed with."""

import json

import pytest
import torch
from character_tokenizers import Characters
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from specdec.errors import SpecdecWarning, SpecError, TargetMismatch
from specdec.targets.model_call import ModelCall
from specdec.training.conversations import Conversation, is_held_out, prompt_key
from specdec.training.dataset import FeatureSet
from specdec.training.feature_store import FeatureStore
from specdec.training.features import FeaturePlan, fingerprint, read_shard, write_shard
from specdec.training.initialization import borrow, check_plan
from specdec.training.loss_mask import CHANGED
from specdec.training.spec import DataSpec, SourceSpec

VOCAB = 60
SHORT = '{"question": "a", "answer": "b"}\n'
"""A question that is not held out."""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def call(model):
    return ModelCall(model)


def conversation(length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (length,), generator=generator).tolist()
    return Conversation(tuple(ids), tuple(place >= 3 for place in range(length)), f"{seed:064x}")


SOME = [conversation(9, 1), conversation(14, 2), conversation(11, 3)]


def test_a_shard_holds_what_the_model_gives_for_each_conversation_alone(model, call, tmp_path):
    path = tmp_path / "own-0000.safetensors"
    write_shard(call, SOME, FeaturePlan(top_k=4, layers=(1, 2), tokens_per_forward=30), path)
    shard, start = read_shard(path), 0
    assert shard["lengths"].tolist() == [9, 14, 11]
    for one in SOME:
        rows = slice(start, start + len(one.token_ids))
        with torch.no_grad():
            whole = model(torch.tensor([one.token_ids]), output_hidden_states=True)
        torch.testing.assert_close(shard["features"][rows].float(), whole.hidden_states[-1][0], rtol=1e-2, atol=1e-2)
        for place, layer in enumerate((1, 2)):
            hidden = whole.hidden_states[layer][0]
            torch.testing.assert_close(shard["layers"][rows, place].float(), hidden, rtol=1e-2, atol=1e-3)
        judged = torch.tensor(one.judged)
        top = whole.logits[0].topk(4)
        assert torch.equal(shard["top_ids"][rows][judged], top.indices[judged].to(torch.int32))
        torch.testing.assert_close(shard["top_logits"][rows][judged].float(), top.values[judged], rtol=1e-2, atol=1e-3)
        normalizer = whole.logits[0].logsumexp(-1)
        torch.testing.assert_close(shard["log_normalizer"][rows][judged], normalizer[judged], rtol=1e-4, atol=1e-4)
        assert bool((shard["top_ids"][rows][~judged] == 0).all())
        start = rows.stop


def test_only_the_targets_own_greedy_answers_pass_as_such(model, call, tmp_path):
    ids = list(SOME[0].token_ids[:4])
    for _ in range(20):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    own = Conversation(tuple(ids), tuple(place >= 4 for place in range(len(ids))), "0" * 64)
    path = tmp_path / "own-held-0000.safetensors"
    write_shard(call, [conversation(20, 5), own], FeaturePlan(top_k=2), path)
    kept = FeatureSet([path], layers=False).greedy_only()
    assert len(kept) == 1
    assert kept.load([0]).token_ids[0].tolist() == ids


def test_embeddings_and_lm_head_are_the_models(model, call):
    ids = torch.tensor([3, 5, 30])
    borrowed = borrow(call, ids)
    assert torch.equal(borrowed.embedding, model.model.embed_tokens.weight)
    torch.testing.assert_close(borrowed.lm_head, model.lm_head.weight[ids])


def test_a_biased_lm_head_is_refused(model):
    torch.manual_seed(0)
    biased = LlamaForCausalLM(model.config).eval()
    biased.lm_head.bias = torch.nn.Parameter(torch.ones(VOCAB))
    with pytest.raises(TargetMismatch, match="bias"):
        borrow(ModelCall(biased), None)


class Words(Characters):
    """A tokenizer for which every character is a token and turns are marked."""

    def __init__(self):
        super().__init__({"user": "\x01", "assistant": "\x02"}, end="\x00", special="\x00")

    def id_of(self, text):
        return ord(text) if text in "\x00\x01\x02" else 3 + ord(text) % 50

    def decode(self, ids, **options):
        return "".join(chr(1000 + token) for token in ids)


class Dropping(Words):
    """Writes of every answer but the last only what stands behind a bar."""

    def apply_chat_template(self, conversation, **options):
        *earlier, last = conversation
        cut = [{**turn, "content": turn["content"].split("|")[-1]} for turn in earlier]
        return super().apply_chat_template([*cut, last], **options)


@pytest.fixture
def store(call, tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(f'{{"question": "q{n}?", "answer": "{"word" * (n % 5 + 1)}"}}\n' for n in range(60)))

    def make(plan=None, seed=0, source=None, folder="shards", tokenizer=None, **changes):
        data = DataSpec(
            sources={"talks": SourceSpec(**{"path": path, "repeat": 2, **(source or {})})},
            **{"validate_on": "talks", "held_out_share": 0.2, "tokens_per_shard": 200, **changes},
        )
        return FeatureStore(tmp_path / folder, data, tokenizer or Words(), call, plan or FeaturePlan(top_k=3), seed=seed)

    return make


def test_shards_are_written_in_order_until_there_are_enough_tokens_and_taken_up_again(store):
    first = store()
    whole = first.cost(["talks"]).tokens
    assert first.write(["talks"], tokens=250) >= 250
    assert len(first.present("talks")) == 2
    again = store()
    assert again.present("talks") == first.present("talks")
    rest = again.cost(["talks"])
    assert 0 < rest.tokens < whole
    assert again.write(["talks"]) == rest.tokens
    assert again.cost(["talks"]).tokens == 0
    assert again.training_shards() == again.present("talks") * 2


def test_what_is_held_out_is_never_learnt_from(store):
    full = store()
    full.write(["talks", "talks-held"])
    seen = {c.key for shard in full._planned["talks"] for c in shard.conversations}
    held = {c.key for shard in full._planned["talks-held"] for c in shard.conversations}
    assert held
    assert not seen & held


def test_the_predicted_size_is_the_real_one(store):
    full = store()
    predicted = full.cost(["talks"]).gigabytes
    full.write(["talks"])
    tensors = [read_shard(path) for path in full.present("talks")]
    real = sum(t.numel() * t.element_size() for shard in tensors for name, t in shard.items() if name != "lengths")
    assert real / 1e9 == pytest.approx(predicted)


def test_counts_include_shards_that_are_still_to_come(store):
    fresh = store()
    before = fresh.counts(VOCAB)
    fresh.write(["talks"])
    assert torch.equal(fresh.counts(VOCAB), before)
    assert torch.equal(before, 2 * FeatureSet(fresh.present("talks"), layers=False).token_counts(VOCAB))


def test_a_shard_of_a_source_that_has_changed_is_not_taken_for_the_new_one(store, tmp_path):
    store().write(["talks"], tokens=1)
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[40:]))
    assert store().present("talks") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "data_seed 0, not 1"),
        ({"tokens_per_shard": 50}, "tokens_per_shard 200, not 50"),
        ({"source": {"max_tokens": 12}}, r"max_tokens \d+, not 12"),
        ({"held_out_share": 0.5}, r"held_out_share 0\.2, not 0\.5"),
    ],
)
def test_runs_that_choose_conversations_otherwise_do_not_overwrite_each_others_features(store, changes, words):
    store().write(["talks"])
    before = {path: path.read_bytes() for path in store().present("talks")}
    wanted = rf"shards/talks-0000\.safetensors does not serve this run: it is of a run with {words}; another folder"
    with pytest.raises(SpecError, match=wanted):
        store(**changes).write(["talks"])
    assert {path: path.read_bytes() for path in store().present("talks")} == before
    assert store(**changes, folder="others").write(["talks"])


def test_features_that_do_not_say_how_they_were_chosen_are_computed_anew_as_before(store):
    store().write(["talks"], tokens=1)
    (path,) = store().present("talks")
    plan = json.loads(safe_open(path, framework="pt").metadata()["plan"])
    del plan["split"]
    save_file(read_shard(path), path, metadata={"plan": json.dumps(plan)})
    assert store().present("talks") == [path]
    assert store(seed=1).write(["talks"], tokens=1)


def test_an_unknown_part_is_named(store):
    with pytest.raises(SpecError, match="talks-held"):
        store().present("tlaks")


def conversations(store, part="talks"):
    return [c for shard in store._planned[part] for c in shard.conversations]


def test_each_option_of_the_data_does_what_it_says(store, tmp_path):
    plain = store()
    assert max(len(c.token_ids) for c in conversations(plain)) > 12
    assert max(len(c.token_ids) for c in conversations(store(source={"max_tokens": 12}))) == 12
    with pytest.raises(SpecError, match=r"data\.sources\.talks: .*talks\.jsonl has no conversation with temperature 0\.5"):
        store(source={"temperature": 0.5})
    with pytest.raises(SpecError, match=r"talks\.jsonl:1: chat_template_kwargs: the chat template reads no 'thinking'"):
        store(chat_template_kwargs={"thinking": False})
    assert len(conversations(store(held_out_share=0.5))) < len(conversations(plain))
    assert len(conversations(store(held_out_at_most=2), "talks-held")) == 2 < len(conversations(plain, "talks-held"))
    assert len(store(tokens_per_shard=50)._planned["talks"]) > len(plain._planned["talks"])
    other = store(seed=1)
    assert conversations(other) != conversations(plain)
    assert {c.key for c in conversations(other)} == {c.key for c in conversations(plain)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": {"max_tokens": 8}, "answer": "?"}, None),
        (
            {"source": {"max_tokens": 8}},
            r"data\.sources\.talks\.max_tokens: 8 cuts every conversation of .*talks\.jsonl before",
        ),
        ({"held_out_share": 1e-9}, "no conversation of 'talks' is held out"),
        ({"held_out_share": 1 - 1e-9}, "none is left to learn from"),
    ],
)
def test_data_that_leaves_nothing_to_learn_from_or_validate_on_is_refused_before_a_forward(store, tmp_path, changes, message):
    question = "?" if changes.pop("answer", None) else "a question that is long"
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(f'{{"question": "{question}{n}", "answer": "words"}}\n' for n in range(60)))
    if message is None:
        store(**changes)
        return
    with pytest.raises(SpecError, match=message):
        store(**changes)


def test_held_out_conversations_that_are_cut_to_nothing_are_told_by_their_source(store, tmp_path):
    path = tmp_path / "talks.jsonl"
    words = [f"{n} and more" for n in range(60)]
    long = {word for word in words if is_held_out(prompt_key([{"role": "user", "content": word}]), 0.2)}
    path.write_text("".join(f'{{"question": "{word}", "answer": "a"}}\n' for word in sorted(long)) + SHORT)
    with pytest.raises(SpecError, match=rf"max_tokens: 8 cuts all {len(long)} held-out conversations"):
        store(source={"max_tokens": 8})


def test_a_conversation_that_teaches_nothing_is_named_by_its_line(store, tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text(path.read_text() + '{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(SpecError, match=r"talks\.jsonl:61: a conversation without a word of the assistant"):
        store()


def test_answers_that_the_template_changes_are_named_by_line_and_turn_and_the_others_are_learnt_from(store, tmp_path):
    path = tmp_path / "talks.jsonl"
    turns = [("user", "q"), ("assistant", "a|b"), ("user", "r"), ("assistant", "c|d")]
    record = {"messages": [{"role": role, "content": content} for role, content in turns]}
    path.write_text(path.read_text() + json.dumps(record) + "\n")
    made = store(tokenizer=Dropping())
    assert made.left_out == {"talks": [f"{path}:61: turn 1: {CHANGED}"]}
    assert len(conversations(made)) + len(conversations(made, "talks-held")) == 61
    assert store().left_out == {}
    only = {"messages": [*record["messages"], {"role": "user", "content": "e"}]}
    only["messages"][3]["content"] = "f|g"
    path.write_text(json.dumps(only) + "\n")
    with pytest.raises(
        SpecError, match=r"no answer in .*talks\.jsonl can be learnt from, such as .*:1: turn 1: the chat template"
    ):
        store(tokenizer=Dropping())


def test_a_shard_with_another_mask_is_not_taken_for_the_new_one(store):
    store().write(["talks"], tokens=1)
    (path,) = store().present("talks")
    tensors = read_shard(path)
    save_file({**tensors, "spoken": ~tensors["spoken"]}, path, metadata=safe_open(path, framework="pt").metadata())
    assert store().present("talks") == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (FeaturePlan(top_k=VOCAB + 1), f"top_k: 61 of {VOCAB} tokens"),
        (FeaturePlan(top_k=10**30), f"at most {VOCAB} would work"),
        (FeaturePlan(layers=(4,)), r"keep_layers: \[4\] for a target of 3 layers"),
        (FeaturePlan(layers=(1, 1)), "different numbers from 0 to 3"),
    ],
)
def test_features_that_the_target_cannot_give_are_refused(plan, message):
    with pytest.raises(SpecError, match=message):
        check_plan(plan, VOCAB, 3)
    check_plan(FeaturePlan(top_k=VOCAB, layers=(0, 3)), VOCAB, 3)


def test_an_epoch_adds_what_it_is_to_have_and_asked_again_adds_nothing(store):
    growing = store(first_tokens=250, tokens_per_epoch=150, tokens_per_shard=60)
    grown = []
    for epoch in (0, 0, 1, 1, 2):
        growing.grow(epoch)
        grown.append(growing.ready_tokens)
    assert 250 <= grown[0] < 250 + 100
    assert 400 <= grown[2] < 400 + 100
    assert grown[0] == grown[1] < grown[2] == grown[3] < grown[4]
    store(tokens_per_shard=60).grow(0)
    assert store(tokens_per_shard=60).cost(["talks"]).tokens == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (FeaturePlan(top_k=4, layers=(1, 2)), "3 soft labels"),
        (FeaturePlan(top_k=3, layers=(0, 2)), r"layers \[1, 2\], wanted are \[0, 2\]"),
    ],
)
def test_features_of_other_layers_or_labels_are_not_taken_for_those_of_a_run(store, plan, message):
    store(plan=FeaturePlan(top_k=3, layers=(1, 2))).write(["talks"], tokens=1)
    assert len(store().present("talks")) == 1
    with pytest.raises(SpecError, match=message):
        store(plan=plan).present("talks")


def test_features_of_another_target_are_not_taken_for_those_of_a_run(store, model):
    store().write(["talks"], tokens=1)
    torch.manual_seed(7)
    other = store()
    other._target = fingerprint(ModelCall(LlamaForCausalLM(model.config).eval()))
    with pytest.raises(SpecError, match="another target"):
        other.present("talks")


def test_a_shard_that_was_cut_short_is_written_anew(store):
    store().write(["talks"], tokens=1)
    (path,) = store().present("talks")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    scratch = path.with_name(f".{path.name}.0123456789ab.partial")
    scratch.write_bytes(whole[:100])
    assert store().present("talks") == []
    store().write(["talks"], tokens=1)
    assert path.read_bytes() == whole
    assert not scratch.exists()


def test_a_target_that_caps_its_logits_is_refused():
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=3.0,
        initializer_range=0.3,
    )
    with pytest.raises(TargetMismatch, match="caps its logits"):
        borrow(ModelCall(Gemma2ForCausalLM(config)), None)


def test_conversations_end_where_one_set_of_rotary_factors_does(tmp_path):
    """Beyond the original length, features of a whole batch would depend on its longest conversation."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0], "long_factor": [9.0, 5.0]}
    config = Phi3Config(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=12, rope_parameters=rope,
        pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Phi3ForCausalLM(config).eval()
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(f'{{"question": "{n}", "answer": "{"word" * (n % 5 + 1)}"}}\n' for n in range(40)))
    data = DataSpec(sources={"talks": SourceSpec(path=path)}, validate_on="talks", held_out_share=0.2)
    with pytest.warns(SpecdecWarning, match=r"max_tokens: 512 is cut to the target's context of 12 tokens .*rotary"):
        store = FeatureStore(tmp_path / "shards", data, Words(), ModelCall(model), FeaturePlan(top_k=2), 0)
    store.write(["talks"])
    shard, start = read_shard(store.present("talks")[0]), 0
    assert max(shard["lengths"].tolist()) == 12
    for length in shard["lengths"].tolist():
        rows = slice(start, start + length)
        with torch.no_grad():
            alone = model(shard["token_ids"][rows][None].long(), output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(shard["features"][rows].float(), alone, rtol=1e-2, atol=1e-2)
        start = rows.stop
