import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec.errors import SpecdecError, TargetMismatch
from specdec.interfaces.declarations import Features, TargetDeclaration
from specdec.interfaces.parts import BuildTools, TargetState
from specdec.targets.huggingface import HuggingFaceOptions, HuggingFaceTarget
from specdec.trees.draft_tree import root_only

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def build(folder, **options):
    return HuggingFaceTarget.build(HuggingFaceOptions(model=str(folder), device="cpu", **options), BuildTools())


@pytest.fixture(scope="module")
def folder(make_model, tmp_path_factory):
    """A llama with 96 columns of logits and a tokenizer of 60 ids."""
    path = tmp_path_factory.mktemp("llama")
    make_model("llama", torch.float32).save_pretrained(path)
    words = ["<pad>", "<s>", "</s>", "<unk>", "<user>", "<bot>", "hello", "world", "."]
    vocabulary = {word: index for index, word in enumerate(words + [f"w{i}" for i in range(60 - len(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", additional_special_tokens=["<user>", "<bot>"]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(folder):
    return build(folder)


def test_a_folder_loads_with_its_sizes_and_stop_ids(target):
    facts = target.facts
    assert (facts.vocab_size, facts.num_layers, facts.hidden_size, facts.max_positions) == (96, 2, 32, 256)
    assert facts.stop_ids == frozenset({2})
    assert facts.trees
    assert facts.dtype == torch.float32


def test_greedy_decoding_equals_transformers_generate_with_a_padded_vocabulary(target, prompt):
    tokens = prompt(9)
    model = target._runtime.call.model
    expected = model.generate(torch.tensor([tokens]), max_new_tokens=20, do_sample=False, eos_token_id=[], pad_token_id=0)[
        0, 9:
    ].tolist()
    started = target.prefill([tokens], Features())
    state, token, got = started.state, int(started.scored[0].logits[0].argmax()), []
    for _ in range(20):
        got.append(token)
        scored = target.score(state, [root_only(token, state.lengths[0])])
        target.commit(state, [()])
        token = int(scored[0].logits[0].argmax())
    assert got == expected


def test_declared_and_loaded_sizes_agree(folder, target):
    declared = HuggingFaceTarget.declares(HuggingFaceOptions(model=str(folder), max_context=100))
    facts = build(folder, max_context=100, probe=False).facts
    assert declared == TargetDeclaration(96, 2, 100, hidden_size=facts.hidden_size)
    assert facts.max_positions == 100


def test_nothing_is_known_of_a_hub_model_that_is_not_at_hand():
    assert HuggingFaceTarget.declares(HuggingFaceOptions(model="nobody/no-such-model")) == TargetDeclaration()


def test_options_choose_dtype_attention_and_chunk(folder, target, prompt):
    wide = build(folder, dtype="float64", attention="eager", prefill_chunk=3)
    assert wide.facts.dtype == torch.float64
    expected = target.prefill([prompt(10)], Features()).scored[0].logits
    torch.testing.assert_close(wide.prefill([prompt(10)], Features()).scored[0].logits.float(), expected, rtol=1e-4, atol=1e-4)


def test_fork_keep_embed_and_head_pass_through(target, prompt):
    started = target.prefill([prompt(4), prompt(6)], Features(last=True))
    forked = target.fork(started.state, [1, 2])
    target.keep(forked, [1, 2])
    assert forked.lengths == (6, 6)
    last = started.scored[1].hidden.last
    torch.testing.assert_close(target.head(last)[-1:], started.scored[1].logits, rtol=1e-5, atol=1e-5)
    assert target.embed(torch.tensor([1, 2])).shape == (2, 32)


def test_text_goes_to_ids_and_back_without_special_tokens(target):
    codec = target.codec
    assert codec.encode("hello world") == [6, 7]
    assert codec.decode([4, 6, 7, 8, 2]) == "hello world ."
    assert codec.chat([{"role": "user", "content": "hello"}]) == [4, 6, 5]
    assert codec.vocabulary()["world"] == 7


def test_a_tokenizer_without_a_chat_template_says_so(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(TargetMismatch, match="no chat template"):
        build(tmp_path, probe=False).codec.chat([{"role": "user", "content": "hello"}])


def test_a_model_without_a_tokenizer_has_no_codec(make_model, tmp_path):
    make_model("gpt2", torch.float32).save_pretrained(tmp_path)
    assert build(tmp_path, probe=False).codec is None


def test_several_end_of_sequence_ids_all_stop(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert build(tmp_path, probe=False).facts.stop_ids == frozenset({2, 5})


def test_nothing_is_printed_while_a_model_loads(folder, capfd):
    build(folder)
    assert capfd.readouterr() == ("", "")


def test_a_model_that_cannot_be_decoded_is_refused_before_its_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "num_hidden_layers": 2}))
    options = HuggingFaceOptions(model=str(tmp_path))
    assert "forget" in HuggingFaceTarget.declares(options).no_decoding_because
    with pytest.raises(TargetMismatch, match="cannot forget a rejected draft"):
        HuggingFaceTarget.build(options, BuildTools())


def test_flash_attention_is_refused_by_name(folder):
    with pytest.raises(TargetMismatch, match="attention: sdpa"):
        build(folder, attention="flash_attention_2")


def test_faults_of_loading_are_told_in_one_line(tmp_path, folder, make_model):
    with pytest.raises(TargetMismatch, match="no folder"):
        build(tmp_path / "nowhere")
    with pytest.raises(TargetMismatch, match=r"config\.json"):
        build(tmp_path)
    with pytest.raises(TargetMismatch, match="no device 'abacus'"):
        HuggingFaceTarget.build(HuggingFaceOptions(model=str(folder), device="abacus"), BuildTools())
    make_model("bloom", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(TargetMismatch, match="attention: eager would work"):
        build(tmp_path)
    assert not build(tmp_path, attention="eager").facts.trees


def test_a_state_of_another_target_is_refused(target):
    class Other(TargetState):
        @property
        def lengths(self):
            return ()

        def check_integrity(self):
            pass

    with pytest.raises(SpecdecError, match="Other"):
        target.score(Other(), [])
