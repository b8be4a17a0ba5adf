"""Which tokens end an answer: ids that are none in the vocabulary never serve as indices."""

import warnings

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

import specdec
from specdec.errors import SpecdecWarning

VOCAB = 40
PARTS = {"drafter": {"use": "none"}, "tree": {"use": "chain", "length": 1}, "verifier": {"use": "match"}}


def folder_of(path, eos, *, ending=None):
    """A model whose config has these end-of-sequence ids; ending: of its tokenizer, id 7."""
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.4, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = eos
    model.save_pretrained(path)
    if ending is not None:
        words = {f"w{n}" if n != 7 else ending: n for n in range(VOCAB)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token=ending).save_pretrained(path)
    return path


def loaded(path):
    return specdec.load({"target": {"use": "huggingface", "model": str(path), "device": "cpu"}, **PARTS})


def test_an_id_beyond_the_vocabulary_is_reported_and_stops_nothing(tmp_path):
    with pytest.warns(SpecdecWarning, match="eos_token_id 50256 of the model's config is outside of its vocabulary of 40"):
        decoder = loaded(folder_of(tmp_path, [50256, 3]))
    assert decoder.target.facts.stop_ids == {3}
    answer = decoder.generate([[5, 6]], max_new_tokens=4, sampling={"min_new_tokens": 2})[0]
    assert 2 <= len(answer.tokens) <= 4


@pytest.mark.parametrize("eos", [-1, None, []])
def test_no_id_at_all_leaves_every_token_possible(tmp_path, eos):
    decoder = loaded(folder_of(tmp_path, eos))
    assert decoder.target.facts.stop_ids == frozenset()
    # The last token of the vocabulary, which an index of -1 would rule out.
    answer = decoder.generate([[5]], max_new_tokens=2, sampling={"min_new_tokens": 2, "logit_bias": {VOCAB - 1: 100.0}})[0]
    assert answer.tokens == (VOCAB - 1,) * 2


def test_the_token_with_which_the_tokenizer_ends_a_text_stops_an_answer_and_is_reported(tmp_path):
    with pytest.warns(SpecdecWarning, match=r"does not name '<end>' \(id 7\), with which its tokenizer ends a text"):
        decoder = loaded(folder_of(tmp_path, None, ending="<end>"))
    answer = decoder.generate([[5]], sampling={"logit_bias": {7: 100.0}})[0]
    assert (answer.tokens, answer.finish_reason, answer.stopped_by) == ((7,), "stop", 7)
    running = decoder.generate([[5]], sampling={"logit_bias": {7: 100.0}}, ignore_eos=True, max_new_tokens=3)[0]
    assert running.tokens == (7, 7, 7)


def test_a_token_that_both_name_is_no_news(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(folder_of(tmp_path, 7, ending="<end>")).target.facts.stop_ids == {7}
