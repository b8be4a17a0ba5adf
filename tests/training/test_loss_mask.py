"""Masks of what the assistant said, for every kind of chat template: each is compared with the message itself."""

import pytest
from tiny_tokenizers import CHATML, DROPS_THOUGHTS, HEADER, bytes_tokenizer

from specdec.errors import SpecError
from specdec.interfaces.text_codec import ChatFormat
from specdec.training.loss_mask import CHANGED, UNMARKED, UNSPLIT, LossMask

OPEN = (
    "{% for m in messages %}" + HEADER + "{{ m['content'] }}{% if not loop.last %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}" + HEADER + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED_AND_DROPPING = MARKED.replace(
    "{{ m['content'] + '<|im_end|>' }}", "{{ m['content'].split('</think>')[-1] + '<|im_end|>' }}", 1
)
NO_PROMPT = CHATML.partition("{% if add_generation_prompt %}")[0]
NO_END = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
INSTRUCT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<s>[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + ' </s>' }}{% endif %}{% endfor %}"
)
BEGINS_THOUGHTS = (
    "{% for m in messages %}" + HEADER + "{{ m['content'].split('</think>')[-1] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""As DeepSeek-R1's: thoughts are begun by the prompt, and every answer in a conversation loses them."""

QUESTION = ("user", "what is 2+2?")


def talk(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def said(template, *turns, arguments=None, **options):
    """(what is learnt from, in pieces; the turns that are left out)."""
    tokenizer = bytes_tokenizer(template, **options)
    found = LossMask(tokenizer, ChatFormat(arguments or {})).of(talk(*turns))
    pieces, piece = [], []
    for token, spoken in [*zip(found.token_ids, found.spoken, strict=True), (0, False)]:
        if spoken:
            piece.append(token)
        elif piece:
            pieces.append(tokenizer.decode(piece))
            piece = []
    return pieces, found.left_out


def whole(template, *turns, **arguments):
    return bytes_tokenizer(template).apply_chat_template(talk(*turns), tokenize=False, **arguments)


def test_special_tokens_inside_of_an_answer_do_not_end_it():
    answer = "<think>a</think>the answer is 4"
    assert said(CHATML, QUESTION, ("assistant", answer)) == ([answer + "<|im_end|>"], ())
    assert said(NO_END, QUESTION, ("assistant", answer)) == ([answer], ())


def test_an_open_last_turn_is_learnt_from_as_far_as_it_goes():
    turns = QUESTION, ("assistant", "<think>a</think>4"), ("user", "sure?"), ("assistant", "yes, <think>")
    assert said(OPEN, *turns) == (["<think>a</think>4<|im_end|>", "yes, <think>"], ())


@pytest.mark.parametrize("template", [NO_PROMPT, NO_END, OPEN])
def test_the_header_of_a_turn_is_not_learnt_from_without_a_generation_prompt(template):
    (piece,), left_out = said(template, QUESTION, ("assistant", "four"))
    assert piece.removesuffix("<|im_end|>") == "four"
    assert left_out == ()


def test_a_space_and_an_end_that_the_template_writes_around_an_answer_are_told_apart():
    turns = QUESTION, ("assistant", " four "), QUESTION, ("assistant", "4")
    assert said(INSTRUCT, *turns) == (["four", "</s>", "4", "</s>"], ())


def test_of_a_template_that_drops_earlier_thoughts_the_last_answer_is_learnt_from_and_the_others_are_named():
    thought, last = "<think>\na\n</think>\n\n4", "<think>\nb\n</think>\n\nyes"
    turns = QUESTION, ("assistant", thought), ("user", "sure?"), ("assistant", last)
    assert said(DROPS_THOUGHTS, *turns) == ([last + "<|im_end|>"], ((1, CHANGED),))


def test_an_earlier_answer_without_thoughts_is_learnt_from_where_thoughts_are_dropped():
    turns = QUESTION, ("assistant", "4"), ("user", "sure?"), ("assistant", "yes")
    assert said(DROPS_THOUGHTS, *turns) == (["4<|im_end|>", "yes<|im_end|>"], ())


def test_thoughts_that_the_template_writes_are_not_the_assistants_and_its_own_are():
    assert "<think>\n\n</think>\n\nyes" in whole(DROPS_THOUGHTS, QUESTION, ("assistant", "yes"))
    assert said(DROPS_THOUGHTS, QUESTION, ("assistant", "yes")) == (["yes<|im_end|>"], ())
    own = "<think>\n\n</think>\n\nyes"
    assert said(DROPS_THOUGHTS, QUESTION, ("assistant", own)) == ([own + "<|im_end|>"], ())


@pytest.mark.parametrize("answer", ["<think>a</think>4", "a\n</think>4"])
def test_a_last_answer_that_the_template_rewrites_is_put_behind_its_prompt_as_it_was_said(answer):
    for template in (DROPS_THOUGHTS, BEGINS_THOUGHTS):
        pieces, left_out = said(template, QUESTION, ("assistant", answer))
        assert (pieces, left_out) == ([answer + "<|im_end|>"], ())
        found = LossMask(bytes_tokenizer(template)).of(talk(QUESTION, ("assistant", answer)))
        asked = whole(template, QUESTION, add_generation_prompt=True)
        assert bytes_tokenizer(template).decode(found.token_ids) == asked + answer + "<|im_end|>"


def test_earlier_turns_are_told_too_where_the_last_is_put_behind_its_prompt():
    turns = QUESTION, ("assistant", "4"), QUESTION, ("assistant", "a\n</think>4"), QUESTION, ("assistant", "b\n</think>4")
    assert said(BEGINS_THOUGHTS, *turns) == (["4<|im_end|>", "b\n</think>4<|im_end|>"], ((3, CHANGED),))


def test_the_templates_generation_marks_say_what_is_learnt_from():
    turns = QUESTION, ("assistant", "four"), QUESTION, ("assistant", "<think>a</think>4")
    assert said(MARKED, *turns) == (["four<|im_end|>", "<think>a</think>4<|im_end|>"], ())
    assert said(MARKED_AND_DROPPING, *turns) == (["four<|im_end|>", "4<|im_end|>"], ((3, UNMARKED),))


def test_an_answer_that_shares_a_token_with_the_template_is_left_out():
    tokenizer = bytes_tokenizer(NO_END, plain=("four\n",))
    found = LossMask(tokenizer).of(talk(QUESTION, ("assistant", "it is four"), QUESTION, ("assistant", "five")))
    assert found.left_out == ((1, UNSPLIT),)
    assert tokenizer.decode([t for t, spoken in zip(found.token_ids, found.spoken, strict=True) if spoken]) == "five"


def test_an_answer_that_the_user_repeats_or_that_is_empty_is_found_in_its_own_place():
    turns = ("user", "say yes"), ("assistant", "yes"), ("user", "yes"), ("assistant", ""), ("user", "b"), ("assistant", "yes")
    assert said(CHATML, *turns) == (["yes<|im_end|>", "<|im_end|>", "yes<|im_end|>"], ())


def test_arguments_of_the_template_are_used():
    pieces, _ = said(DROPS_THOUGHTS, QUESTION, ("assistant", "4"), arguments={"enable_thinking": False})
    assert pieces == ["4<|im_end|>"]
    with pytest.raises(SpecError, match="reads no 'thinking'"):
        said(DROPS_THOUGHTS, QUESTION, ("assistant", "4"), arguments={"thinking": False})


class Slow:
    """A tokenizer that does not tell which characters its tokens cover."""

    is_fast = False

    def __init__(self, template):
        self._inner = bytes_tokenizer(template, plain=(" four",))

    def __call__(self, text, *, add_special_tokens):
        return self._inner(text, add_special_tokens=add_special_tokens)

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize("template", [CHATML, NO_PROMPT, INSTRUCT, MARKED, DROPS_THOUGHTS, OPEN])
def test_a_tokenizer_that_does_not_tell_what_its_tokens_cover_gives_the_same_mask(template):
    turns = talk(QUESTION, ("assistant", "<think>a</think>it is four"), ("user", "sure?"), ("assistant", "four"))
    slow, fast = LossMask(Slow(template)).of(turns), LossMask(Slow(template)._inner).of(turns)
    assert slow.token_ids == fast.token_ids
    assert slow.spoken == fast.spoken
    assert slow.left_out == fast.left_out
