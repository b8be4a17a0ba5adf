"""Questions are read from every usual format, and what is wrong with a file is said by line."""

import json

import pytest

from specdec.bench.prompts import Selection, read_questions
from specdec.errors import SpecError


@pytest.fixture
def file(tmp_path):
    def write(*records, name="q.jsonl"):
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
        return path

    return write


def read(*paths, **selection):
    return read_questions(paths, Selection(**selection))[0]


def test_the_four_formats_say_the_same(file):
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "not looked at"},
        {"role": "user", "content": "b"},
    ]
    found = read(file({"turns": ["a", "b"]}, {"messages": messages}, {"prompt": "a"}, {"question": "a", "answer": "no"}))
    assert [q.turns for q in found] == [("a", "b"), ("a", "b"), ("a",), ("a",)]
    assert [q.system for q in found] == [None, "short", None, None]
    assert [q.category for q in found] == ["q"] * 4


def test_ids_and_categories_are_those_of_the_file(file):
    (found,) = read(file({"question_id": 81, "category": "writing", "turns": ["a"]}))
    assert (found.key, found.number, found.category) == ("q/81", 81, "writing")


def test_a_selection_takes_the_first_of_each_file(file):
    rows = [{"question_id": n, "category": "ab"[n % 2], "turns": ["x", "y", "z"]} for n in range(6)]
    first, second = file(*rows), file(*rows, name="r.jsonl")
    found = read(first, second, count=2, categories=("b",), turns=2)
    assert [q.key for q in found] == ["q/1", "q/3", "r/1", "r/3"]
    assert {q.turns for q in found} == {("x", "y")}


def test_the_file_is_known_by_the_hash_of_its_bytes(file):
    path = file({"prompt": "a"}, {"prompt": "b"})
    (before,) = read_questions([path], Selection(count=1))[1]
    path.write_text(path.read_text() + "\n")
    (after,) = read_questions([path], Selection(count=1))[1]
    assert before.num_questions == after.num_questions == 1
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{", "q.jsonl:2: no JSON"),
        ("[" * 100_000, "q.jsonl:2: no JSON: it is nested too deeply"),
        ('{"prompt": "a", "question_id": ' + "1" * 5000 + "}", "q.jsonl:2: no JSON"),
        ('{"prompt": "a", "question_id": "\\ud800"}', "q.jsonl:2: no JSON: it holds half a character"),
        ('{"prompt": "a", "question_id": NaN}', "q.jsonl:2: no JSON: NaN is no number"),
        ("[]", "q.jsonl:2: got list"),
        ({"text": "a"}, "expected one of the keys turns, messages, prompt, question"),
        ({"turns": []}, "'turns' is not a list of texts"),
        ({"turns": ["a", 3]}, "'turns' is not a list of texts"),
        ({"prompt": ""}, "'prompt' is not a text, or is empty"),
        ({"messages": "a"}, "'messages' is str"),
        ({"messages": [{"role": "user"}]}, "without a text"),
        ({"messages": [{"role": "ghost", "content": "a"}]}, "role 'ghost'"),
        ({"messages": [{"role": "system", "content": "a"}]}, "nobody with role 'user'"),
        ({"prompt": "a", "category": 3}, "category is int"),
        ({"prompt": "a", "question_id": [1]}, "question_id is list"),
    ],
)
def test_a_line_that_is_no_question_is_named(file, record, words):
    with pytest.raises(SpecError) as error:
        read(file({"prompt": "fine"}, record))
    assert words in str(error.value)


def test_what_cannot_be_asked_is_refused(file, tmp_path):
    with pytest.raises(SpecError, match="did you mean 'math'"):
        read(file({"prompt": "a", "category": "math"}), categories=("maths",))
    with pytest.raises(SpecError, match="no questions"):
        read(file(""))
    with pytest.raises(SpecError, match="is there twice"):
        read(file({"prompt": "a"}), file({"prompt": "a"}))
    with pytest.raises(SpecError, match="cannot be read"):
        read(tmp_path / "gone.jsonl")
