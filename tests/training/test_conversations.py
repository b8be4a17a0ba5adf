import json

import pytest
from character_tokenizers import Characters

from specdec.errors import SpecError
from specdec.training.conversations import encode, is_held_out, numbered_messages, prompt_key, read_messages, shuffled
from specdec.training.loss_mask import LossMask


class Letters(Characters):
    """A role's mark, the words, an end mark and a line break."""

    IDS = {"\x01": 1, "\x02": 2, "\x03": 3, "\x04": 4, "\n": 5, "\x7f": 99}

    def __init__(self, trailing_note=False):
        marks = {"system": "\x01", "user": "\x02", "assistant": "\x03"}
        super().__init__(marks, end="\x04", between="\n", note="\x7f" if trailing_note else "", ids=self.IDS)


def read(messages, max_tokens=100, **options):
    return encode(messages, LossMask(Letters(**options)), max_tokens)


def talk(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def test_only_the_assistants_words_and_its_end_of_turn_are_spoken():
    chat = talk(("user", "ab"), ("assistant", "xyz"), ("user", "c"), ("assistant", "w"))
    found = read(chat)
    said = [token for token, spoken in zip(found.token_ids, found.spoken, strict=True) if spoken]
    assert said == [10 + ord("x"), 10 + ord("y"), 10 + ord("z"), 4, 10 + ord("w"), 4]
    assert not any(found.spoken[:5])


def test_what_is_judged_is_one_place_before_what_is_spoken():
    found = read(talk(("user", "a"), ("assistant", "xy")), 100)
    assert found.judged == (*found.spoken[1:], False)


def test_a_conversation_without_an_assistant_is_an_error():
    with pytest.raises(SpecError, match="nothing to learn"):
        read(talk(("user", "a")), 100)


def test_what_a_template_writes_behind_the_whole_conversation_is_not_said_by_the_assistant():
    found = read(talk(("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y")), trailing_note=True)
    assert found.token_ids[-1] == 99
    said = [token for token, spoken in zip(found.token_ids, found.spoken, strict=True) if spoken]
    assert said == [10 + ord("x"), 4, 10 + ord("y"), 4]
    assert found.left_out == ()


def test_long_conversations_are_cut_and_stay_aligned():
    whole = read(talk(("user", "ab"), ("assistant", "xyz")), 100)
    cut = read(talk(("user", "ab"), ("assistant", "xyz")), 8)
    assert cut.token_ids == whole.token_ids[:8]
    assert cut.spoken == whole.spoken[:8]


def test_answers_to_one_question_are_never_parted_by_the_split():
    first = talk(("user", "q"), ("assistant", "x"))
    second = talk(("system", "s"), ("user", "q"), ("assistant", "y"))
    assert prompt_key(first) == prompt_key(second)
    held = [is_held_out(prompt_key(talk(("user", str(n)))), 0.06) for n in range(4000)]
    assert 0.04 < sum(held) / 4000 < 0.08


def test_the_order_depends_on_the_seed_and_not_on_the_file():
    some = [read(talk(("user", str(n)), ("assistant", "x")), 100) for n in range(20)]
    assert shuffled(some, 1) == shuffled(some[::-1], 1)
    assert shuffled(some, 1) != shuffled(some, 2)


def test_lines_are_read_in_both_forms_and_by_temperature(tmp_path):
    path = tmp_path / "some.jsonl"
    lines = [
        {"question": "1+1?", "answer": "2"},
        {"messages": talk(("user", "a"), ("assistant", "b")), "temperature": 0.0},
        {"messages": talk(("user", "c"), ("assistant", "d")), "temperature": 1.0},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert len(list(read_messages(path))) == 3
    assert list(read_messages(path, temperature=0.0)) == [talk(("user", "a"), ("assistant", "b"))]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "9" * 5000,
        "[" * 9999,
        "[1]",
        '"messages"',
        "null",
        '{"prompt": "a"}',
        '{"question": null, "answer": "b"}',
        '{"question": 3}',
        '{"messages": 3}',
        '{"messages": []}',
        '{"messages": ["a"]}',
        '{"messages": {"role": "user"}}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": null}]}',
        '{"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "b"}]}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}',
        '{"messages": [{"role": ["user"], "content": "a"}]}',
        '{"messages": [{"role": "bot", "content": "a"}]}',
        r'{"messages": [{"role": "user", "content": "\ud800"}]}',
    ],
)
def test_a_bad_line_is_named_by_its_number_for_training_and_for_distilling_alike(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "a", "answer": "b", "temperature": 1.0}\n' + line + "\n")
    for options in ({}, {"answered": False}, {"temperature": 1.0}):
        if "temperature" in options and line.startswith("{") and line.endswith("}"):
            continue
        with pytest.raises(SpecError, match=r"bad\.jsonl:2: "):
            list(read_messages(path, **options))


def test_a_template_that_refuses_a_conversation_is_an_error_of_ours():
    class Strict(Letters):
        def apply_chat_template(self, conversation, **options):
            raise RuntimeError("roles must alternate")

    with pytest.raises(SpecError, match="the chat template refuses the conversation: roles must alternate"):
        encode(talk(("user", "a"), ("assistant", "x")), LossMask(Strict()), 100)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "questions.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"questions\.jsonl: (cannot be read: .|not UTF-8 text \(byte 0\))"):
        list(read_messages(path))


def test_a_question_may_lack_its_answer_where_answers_are_not_looked_at(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a\u2028b"}\n', encoding="utf-8")
    assert list(read_messages(path, answered=False)) == [[{"role": "user", "content": "a\u2028b"}]]
    with pytest.raises(SpecError, match="'answer'"):
        list(read_messages(path))


def test_answers_that_were_made_with_other_arguments_of_the_template_are_an_error(tmp_path):
    path = tmp_path / "own.jsonl"
    line = {"question": "a", "answer": "b", "chat_template_kwargs": {"enable_thinking": False}}
    path.write_text(json.dumps(line) + "\n" + json.dumps({"question": "c", "answer": "d"}) + "\n")
    assert len(list(numbered_messages(path, chat_template_kwargs={"enable_thinking": False}))) == 2
    with pytest.raises(
        SpecError, match=r"own\.jsonl:1: was answered with chat_template_kwargs .*, and data\.chat_template_kwargs is"
    ):
        list(numbered_messages(path, chat_template_kwargs={}))
