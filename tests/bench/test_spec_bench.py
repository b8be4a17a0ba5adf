"""Spec-Bench's answer files: what is written can be read, and theirs can be compared."""

import json

import pytest

from specdec.bench.compare import compare_answers
from specdec.bench.metrics import paired
from specdec.bench.spec_bench import is_answer_file, read_answers, write_answers
from specdec.errors import SpecError

THEIRS = {
    "question_id": 81,
    "category": "writing",
    "answer_id": "x",
    "model_id": "vicuna",
    "choices": [
        {
            "index": 0,
            "turns": ["one", "two"],
            "decoding_steps": [2, 1],
            "new_tokens": [6, 4],
            "wall_time": [0.5, 0.5],
            "accept_lengths": [3, 3, 4],
        }
    ],
    "tstamp": 1.0,
}


@pytest.fixture
def answers(tmp_path):
    def write(name, *records):
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        return path

    return write


def test_what_is_written_is_read_and_says_what_was_measured(measure, folder):
    results = measure("tree")
    path = folder / "answers.jsonl"
    assert write_answers(results, results.cells[0], "tree", path) == 3
    assert is_answer_file(path)
    found = {answer.question_id: answer for answer in read_answers(path)}
    assert set(found) == {1, 2, 3}
    own = [m for m in results.measurements if m.contender == "tree" and m.group == 0]
    assert found[1].turns == tuple(m.answers[0].text for m in own)
    assert found[1].new_tokens == (12, 12)
    assert found[1].wall_time == tuple(m.seconds for m in own)
    assert sum(found[1].accept_lengths) == 2 * 11
    assert len(found[1].accept_lengths) == sum(found[1].decoding_steps)


def test_answers_that_were_given_together_share_their_time(measure, folder):
    results = measure("tree", batch_sizes=(2,))
    path = folder / "answers.jsonl"
    write_answers(results, results.cells[0], "plain", path)
    plain = [m for m in results.measurements if m.contender == "plain"]
    written = sum(sum(answer.wall_time) for answer in read_answers(path))
    assert written == pytest.approx(sum(m.seconds for m in plain))
    assert len(paired(plain, plain)) == 2


def test_two_answer_files_are_compared_by_category(answers):
    fast = json.loads(json.dumps(THEIRS))
    fast["choices"][0]["wall_time"] = [0.25, 0.25]
    other = {**json.loads(json.dumps(THEIRS)), "question_id": 1, "category": "qa"}
    rows = compare_answers(read_answers(answers("a", THEIRS, other)), read_answers(answers("b", fast, other)))
    assert [(row.category, row.num_questions, row.faster.value) for row in rows] == [
        ("writing", 1, 2.0),
        ("qa", 1, 1.0),
        ("overall", 2, 1.5),
    ]
    assert rows[0].tau_before == pytest.approx(10 / 3)


def test_answer_files_without_a_common_question_are_refused(answers):
    with pytest.raises(SpecError, match="no question in common"):
        compare_answers(read_answers(answers("a", THEIRS)), read_answers(answers("b", {**THEIRS, "question_id": 2})))


@pytest.mark.parametrize(
    "record",
    [
        {},
        [],
        {**THEIRS, "choices": []},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "wall_time": [1.0]}]},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "new_tokens": ["many", 1]}]},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "new_tokens": [-1, 1]}]},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "wall_time": [-1.0, 1.0]}]},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "wall_time": [float("nan"), 1.0]}]},
        {**THEIRS, "choices": [{**THEIRS["choices"][0], "turns": [None, 1]}]},
        {**THEIRS, "question_id": [1]},
    ],
)
def test_a_line_that_is_no_answer_is_named(answers, record):
    with pytest.raises(SpecError, match=r"a:2: "):
        read_answers(answers("a", THEIRS, record))
