"""What a question looks like to the model, turn after turn."""

import pytest
from marked_letters import MarkedLetters
from tiny_tokenizers import CHATML, DROPS_THOUGHTS, bytes_tokenizer

from specdec.bench.chat_prompts import Prompter
from specdec.bench.prompts import Question
from specdec.errors import SpecError
from specdec.interfaces.text_codec import ChatFormat
from specdec.targets.text_codec import TokenizerCodec

TWO_TURNS = Question("q", "all", ("hi", "more"))


def test_a_later_turn_repeats_the_answer_with_its_special_tokens_and_without_its_end():
    codec = TokenizerCodec(bytes_tokenizer(CHATML))
    said, (end,) = codec.encode("<think>a</think>b"), codec.encode("<|im_end|>")
    prompter = Prompter(codec, chat=True, stop_ids=(end,))
    ids = prompter.ids(TWO_TURNS, [prompter.said([*said, end])])
    assert list(ids) == codec.encode(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>a</think>b<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_text_of_an_answer_is_a_decoders_without_special_tokens_and_the_stop_token():
    prompter = Prompter(MarkedLetters(8, {6: "<think>"}), chat=False, stop_ids=(3,))
    assert prompter.text([1, 6, 2, 3]) == "bc"
    assert prompter.said([1, 6, 2, 3]).text == "b<think>c"


def test_a_prompt_without_a_template_has_the_tokenizers_first_tokens_once_and_never_its_last():
    codec = TokenizerCodec(bytes_tokenizer(None, adds="<s> $A </s>"))
    prompter = Prompter(codec, chat=None)
    assert list(prompter.ids(TWO_TURNS, [prompter.said(codec.encode("ok", opens=False))])) == codec.encode("hiokmore")


def test_arguments_of_the_chat_template_are_used_and_refused_where_there_is_none_that_reads_them():
    silent = ChatFormat({"enable_thinking": False})
    codec = TokenizerCodec(bytes_tokenizer(DROPS_THOUGHTS))
    ids = Prompter(codec, chat=None, chat_format=silent).ids(TWO_TURNS, [])
    assert list(ids) == codec.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(SpecError, match="reads no 'enable_thinking'"):
        Prompter(TokenizerCodec(bytes_tokenizer(CHATML)), chat=None, chat_format=silent)
