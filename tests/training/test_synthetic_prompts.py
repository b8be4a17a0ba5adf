import json

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import SpecdecError, SpecError, TargetMismatch
from specdec.sampling.params import SamplingParams
from specdec.training.synthetic_prompts import BARREN, invent, user_opening

SETTINGS = {"max_new_tokens": 6, "batch": 4, "seed": 5}


class Probes:
    """A codec of which only the chat template counts."""

    def __init__(self, chat):
        self.chat = chat


@pytest.fixture
def asking(compose, table, watched, chain_of, digits):
    """A decoder whose target writes 1 before what users say, and 0 behind it."""

    class Asking(digits):
        def chat(self, messages, chat_format=None):
            return [1, *(ord(letter) % 8 for letter in messages[0]["content"]), 0]

        def decode(self, ids):
            return super().decode([token for token in ids if token])

    return lambda *sizes, **options: compose(watched(table(*sizes, stop_ids=(0,), **options), Asking()), chain_of(2))


@pytest.fixture
def decoder(asking):
    return asking(seed=3)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_questions_are_what_the_target_writes_after_the_opening_and_do_not_repeat(decoder, tmp_path):
    path = tmp_path / "questions.jsonl"
    assert list(invent(decoder, 10, path, **SETTINGS))[-1] == 10
    found = lines(path)
    texts = [line["messages"][0]["content"] for line in found]
    assert len(set(texts)) == len(texts) == 10
    assert [line["seed"] for line in found] == sorted({line["seed"] for line in found})
    for line in found:
        (alone,) = decoder.generate([[1]], max_new_tokens=6, sampling=SamplingParams(temperature=1.0), seed=line["seed"])
        assert line["messages"] == [{"role": "user", "content": alone.text.strip()}]
        assert alone.finish_reason == "stop"


@pytest.mark.parametrize("cut", [0, 9])
def test_a_call_that_was_stopped_goes_on_to_the_same_file(decoder, tmp_path, cut):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    list(invent(decoder, 9, whole, **SETTINGS))
    next(invent(decoder, 9, part, **SETTINGS))
    if cut:
        part.write_text(part.read_text()[:-cut])
    list(invent(decoder, 9, part, **SETTINGS))
    assert part.read_text() == whole.read_text()
    assert list(invent(decoder, 9, part, **SETTINGS)) == []


@pytest.mark.parametrize(
    ("changed", "words"), [({"max_new_tokens": 7}, "max_new_tokens 6, not 7"), ({"seed": 900}, "before 900")]
)
def test_questions_of_other_draws_are_not_gone_on_with(decoder, tmp_path, changed, words):
    path = tmp_path / "questions.jsonl"
    next(invent(decoder, 9, path, **SETTINGS))
    before = path.read_bytes()
    with pytest.raises(SpecError, match=words):
        list(invent(decoder, 9, path, **SETTINGS | changed))
    assert path.read_bytes() == before


def test_questions_of_another_target_and_lines_of_ones_own_are_not_gone_on_with_or_cut_off(asking, decoder, tmp_path):
    path = tmp_path / "questions.jsonl"
    next(invent(decoder, 9, path, **SETTINGS))
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"questions\.jsonl:1: was written by target"):
        list(invent(asking(9), 9, path, **SETTINGS))
    assert path.read_bytes() == before
    mine = '{"messages": [{"role": "user", "content": "a question of mine"}]}'
    path.write_text(mine)
    with pytest.raises(SpecError, match=r"questions\.jsonl:1: is there and is no line of this command"):
        list(invent(decoder, 9, path, **SETTINGS))
    assert path.read_text() == mine


def test_the_command_says_how_many_questions_there_are_where_fewer_are_wanted(decoder, tmp_path, monkeypatch):
    path = tmp_path / "questions.jsonl"
    list(invent(decoder, 3, path, **SETTINGS))
    monkeypatch.setattr("specdec.cli.train.load", lambda *given, **named: decoder)
    for wanted, said in ((2, "has 3 questions already, more than the 2 wanted"), (3, "has 3 questions already\n")):
        options = ["--max-new-tokens", "6", "--seed", "5"]
        result = CliRunner().invoke(app, ["data", "invent", str(wanted), str(path), *options])
        assert (result.exit_code, said in result.output) == (0, True)


def test_a_target_that_has_nothing_more_to_ask_is_said_to_have_none(asking, tmp_path):
    path, one = tmp_path / "questions.jsonl", asking(2)
    with pytest.raises(SpecError, match=f"has 1 questions, and {BARREN * 4} more draws"):
        list(invent(one, 5, path, max_new_tokens=2, batch=4, seed=0))
    assert [line["messages"][0]["content"] for line in lines(path)] == ["1"]


def test_a_target_without_a_chat_template_asks_nothing(compose, table, chain_of, tmp_path):
    with pytest.raises(TargetMismatch, match="has no chat template"):
        next(invent(compose(table(), chain_of(2)), 3, tmp_path / "questions.jsonl", **SETTINGS))


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (lambda messages: [1, 2], "does not write what users say"),
        (lambda m: [ord(m[0]["content"][0])], "writes nothing before"),
    ],
)
def test_a_template_that_does_not_show_where_users_begin_is_refused(chat, words):
    with pytest.raises(TargetMismatch, match=words):
        user_opening(Probes(chat))


def test_the_opening_is_what_all_users_words_come_after():
    assert user_opening(Probes(lambda messages: [7, 3, *map(ord, messages[0]["content"]), 9])) == [7, 3]


def test_where_a_draw_fails_the_others_of_its_batch_are_kept_and_the_next_call_draws_on(decoder, tmp_path):
    path, whole = tmp_path / "asked.jsonl", decoder.generate
    generated = []

    def failing(prompts, **options):
        answers = whole(prompts, **options)
        generated.append(options["seed"])
        if len(generated) > 1:
            return answers
        error = SpecdecError("prompt 2: a row of logits has NaN")
        error.finished = (answers[0], None, *answers[2:])
        raise error

    decoder.generate = failing
    with pytest.raises(SpecdecError, match="prompt 2"):
        list(invent(decoder, 5, path, max_new_tokens=6, batch=12, seed=0))
    kept = [line["seed"] for line in lines(path)]
    assert kept
    assert 1 not in kept
    list(invent(decoder, len(kept) + 1, path, max_new_tokens=6, batch=12, seed=0))
    assert generated[1][0] == kept[-1] + 1
