import json

import pytest

from specdec.errors import SpecError
from specdec.training.conversations import encode, is_held_out, prompt_key, read_messages, shuffled


class Letters:
    """A tokenizer of letters with a chat template: a role's mark, the words, an end mark and a line break."""

    MARKS = {"system": 1, "user": 2, "assistant": 3}
    END, BREAK = 4, 5
    all_special_ids = [1, 2, 3, 4]

    def __init__(self, trailing_note=False):
        self.trailing_note = trailing_note

    def apply_chat_template(self, messages, *, add_generation_prompt, return_dict):
        ids = []
        for message in messages:
            ids += [self.MARKS[message["role"]], *(10 + ord(c) for c in message["content"]), self.END, self.BREAK]
        if add_generation_prompt:
            ids.append(self.MARKS["assistant"])
        elif self.trailing_note:
            ids.append(99)
        return {"input_ids": ids}


def talk(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def test_only_the_assistants_words_and_its_end_of_turn_are_spoken():
    chat = talk(("user", "ab"), ("assistant", "xyz"), ("user", "c"), ("assistant", "w"))
    found = encode(chat, Letters(), 100)
    said = [token for token, spoken in zip(found.token_ids, found.spoken, strict=True) if spoken]
    assert said == [10 + ord("x"), 10 + ord("y"), 10 + ord("z"), 4, 10 + ord("w"), 4]
    assert not any(found.spoken[:5])


def test_what_is_judged_is_one_place_before_what_is_spoken():
    found = encode(talk(("user", "a"), ("assistant", "xy")), Letters(), 100)
    assert found.judged == (*found.spoken[1:], False)


def test_a_conversation_without_an_assistant_is_an_error():
    with pytest.raises(SpecError, match="nothing to learn"):
        encode(talk(("user", "a")), Letters(), 100)


def test_a_template_that_rewrites_its_end_is_an_error_not_a_wrong_mask():
    with pytest.raises(SpecError, match="cannot be told"):
        encode(talk(("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y")), Letters(trailing_note=True), 100)


def test_long_conversations_are_cut_and_stay_aligned():
    whole = encode(talk(("user", "ab"), ("assistant", "xyz")), Letters(), 100)
    cut = encode(talk(("user", "ab"), ("assistant", "xyz")), Letters(), 8)
    assert cut.token_ids == whole.token_ids[:8]
    assert cut.spoken == whole.spoken[:8]


def test_answers_to_one_question_are_never_parted_by_the_split():
    first = talk(("user", "q"), ("assistant", "x"))
    second = talk(("system", "s"), ("user", "q"), ("assistant", "y"))
    assert prompt_key(first) == prompt_key(second)
    held = [is_held_out(prompt_key(talk(("user", str(n)))), 0.06) for n in range(4000)]
    assert 0.04 < sum(held) / 4000 < 0.08


def test_the_order_depends_on_the_seed_and_not_on_the_file():
    some = [encode(talk(("user", str(n)), ("assistant", "x")), Letters(), 100) for n in range(20)]
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
        def apply_chat_template(self, messages, **options):
            raise RuntimeError("roles must alternate")

    with pytest.raises(SpecError, match="the chat template refuses the conversation: roles must alternate"):
        encode(talk(("user", "a"), ("assistant", "x")), Strict(), 100)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "questions.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"questions\.jsonl: cannot be read"):
        list(read_messages(path))


def test_a_question_may_lack_its_answer_where_answers_are_not_looked_at(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a\u2028b"}\n', encoding="utf-8")
    assert list(read_messages(path, answered=False)) == [[{"role": "user", "content": "a\u2028b"}]]
    with pytest.raises(SpecError, match="'answer'"):
        list(read_messages(path))
