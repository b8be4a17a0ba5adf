"""Text to ids and back: what a tokenizer adds, what the template is given, what counts as a control token."""

import pytest
from tiny_tokenizers import CHATML, DROPS_THOUGHTS, bytes_tokenizer

from specdec.decoding.detokenizer import text_of
from specdec.decoding.prompts import encode
from specdec.errors import SpecError, TargetMismatch
from specdec.interfaces.text_codec import ChatFormat
from specdec.targets.text_codec import TokenizerCodec

USER = [{"role": "user", "content": "hi"}]
ANSWERED = [*USER, {"role": "assistant", "content": "well,"}]


def codec(*arguments, **options):
    return TokenizerCodec(bytes_tokenizer(*arguments, **options))


def shown(made, ids):
    """With special tokens."""
    return text_of(made, ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("adds", "text", "read"),
    [
        ("<s> $A </s>", "hello", "<s>hello"),
        ("<s> $A </s>", "<s>hello", "<s>hello"),
        ("<s> $A </s>", "hello</s>", "<s>hello</s>"),
        ("<s> $A </s>", "", "<s>"),
        ("$A </s>", "hello", "hello"),
        ("<s> <think> $A", "<s><think>a", "<s><think>a"),
        ("<s> <think> $A", "<s>a", "<s>a"),
        ("", "hello", "hello"),
    ],
)
def test_a_text_gets_the_tokenizers_first_tokens_once_and_never_its_last(adds, text, read):
    made = codec(adds=adds)
    assert shown(made, made.encode(text)) == read
    assert shown(made, made.encode(text, opens=False)) == text


def test_special_tokens_are_left_out_of_texts_whether_they_have_a_role_or_not():
    made = codec(plain=("<tool>",))
    ids = made.encode("<think>a</think><tool>b")
    assert len(ids) == 5
    assert made.decode(ids) == "a<tool>b"
    assert shown(made, ids) == "<think>a</think><tool>b"
    assert set(made.special_tokens.values()) == {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"}


def test_control_tokens_are_the_special_ones_and_the_added_ones_that_the_template_writes():
    made = codec("{{ '<tool>' }}", special=("<s>", "<|im_end|>"), plain=("<tool>", "<table>", "  "))
    assert set(made.control_tokens) == {"<s>", "<|im_end|>", "<tool>"}


def test_arguments_reach_the_chat_template():
    made = codec(DROPS_THOUGHTS)
    silent = made.chat(USER, ChatFormat({"enable_thinking": False}))
    assert shown(made, silent) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert made.chat(USER, ChatFormat({"enable_thinking": True})) == made.chat(USER)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"enable_thinkin": False}, "the chat template reads no 'enable_thinkin'; did you mean 'enable_thinking'"),
        ({"zzz": 1}, "the chat template reads no 'zzz'; it reads: .*enable_thinking"),
        ({"add_generation_prompt": False}, "'add_generation_prompt' is set by specdec itself"),
        ({"messages": []}, "'messages' is set by specdec itself"),
    ],
)
def test_an_argument_that_the_template_does_not_read_is_refused(arguments, words):
    with pytest.raises(SpecError, match=words):
        codec(DROPS_THOUGHTS).chat(USER, ChatFormat(arguments))


@pytest.mark.parametrize("template", ["{% set a = a | default(1) %}{{ a }}", "{% generation %}{{ a }}{% endgeneration %}"])
def test_a_variable_with_a_default_or_between_generation_marks_is_one_that_is_read(template):
    made = codec(template)
    assert shown(made, made.chat(USER, ChatFormat({"a": 3}))) == "3"


def test_a_conversation_that_ends_with_the_assistant_is_continued_on_request_and_refused_else():
    made = codec()
    with pytest.raises(SpecError, match="ends with a turn of the assistant; continue_final_message=True continues"):
        encode(ANSWERED, made)
    ids = encode(ANSWERED, made, ChatFormat(continue_final_message=True))
    assert shown(made, ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nwell,"
    with pytest.raises(SpecError, match="does not end with a turn of the assistant"):
        encode(USER, made, ChatFormat(continue_final_message=True))


def test_a_final_message_that_the_template_leaves_out_cannot_be_continued():
    with pytest.raises(SpecError, match="the chat template refuses the conversation"):
        encode(ANSWERED, codec("{{ messages[0].content }}{# content #}"), ChatFormat(continue_final_message=True))


def test_control_tokens_typed_by_a_user_are_read_refused_or_escaped():
    typed = [{"role": "user", "content": "a<|im_end|>b"}]
    made = codec()
    end = made.encode("<|im_end|>")[0]
    assert encode(typed, made).count(end) == 2
    with pytest.raises(SpecError, match=r"turn 0: has the control token '<\|im_end\|>'"):
        encode(typed, made, refuse_control_tokens=True)
    escaped = encode(typed, made, ChatFormat(escape_control_tokens=True))
    assert escaped.count(end) == 1
    assert made.decode(escaped) == "user\na<|im_end|>b\nassistant\n"
    with pytest.raises(SpecError, match="prompt: has the control token"):
        encode("a<|im_end|>b", made, refuse_control_tokens=True)
    assert end not in encode("a<|im_end|>b", made, ChatFormat(escape_control_tokens=True))
    assert encode(USER, made, refuse_control_tokens=True) == encode(USER, made)


@pytest.mark.parametrize("chat_format", [ChatFormat({"enable_thinking": False}), ChatFormat(continue_final_message=True)])
@pytest.mark.parametrize("prompt", ["hi", [1, 2]])
def test_options_of_the_template_beside_a_prompt_that_does_not_go_through_it_are_refused(chat_format, prompt):
    with pytest.raises(SpecError, match="the prompt is no conversation"):
        encode(prompt, codec(), chat_format)


def test_a_tokenizer_without_a_template_says_so():
    with pytest.raises(TargetMismatch, match="no chat template"):
        encode(USER, codec(None))


def test_an_answer_with_special_tokens_encodes_back_to_what_was_said():
    made = codec(CHATML)
    said = made.encode("<think>a</think>b")
    end = made.encode("<|im_end|>")
    text = text_of(made, [*said, *end], stop_ids=end)
    assert text == "<think>a</think>b"
    assert made.encode(text, opens=False) == said
    assert text_of(made, [*said, *end], stop_ids=end, skip_special_tokens=True) == "ab"
