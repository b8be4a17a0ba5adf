"""What a results file may hold: every line is looked at, its ranges included, and is named where it is wrong."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from specdec.bench.measurements import Answer, Cell, Counts, Header, Measurement
from specdec.bench.metrics import summaries
from specdec.bench.plot import draw, file_label
from specdec.bench.prompts import Selection, read_questions
from specdec.bench.results import read_results
from specdec.bench.table import csv_table, report
from specdec.errors import SpecError

COUNTS = Counts(2, 4, 4, 2, (2, 1), (1, 1), (2, 1), (1, 1), (2, 2))
ANSWER = Answer("q/1", 0, "all", 3, (1, 2, 3), "x", COUNTS, 1)
MEASUREMENT = asdict(Measurement(Cell(None, 0.0, 1), "plain", 0, 0, 1.5, 0.5, (ANSWER,), {"prefill": 0.5}, 1000))
HEADER = {"format": 1, **asdict(Header({"prompts": [], "settings": {}}, {"plain": {"shape": "chain"}}, {"cpu": "x"}))}


def read(tmp_path, *lines):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return read_results(path)


def test_a_sound_file_is_read_and_reported(tmp_path):
    results = read(tmp_path, {"header": HEADER}, {"measurement": MEASUREMENT}, {"resumed": {"cpu": "y"}})
    assert len(results.measurements) == 1
    assert "plain" in report(results)
    assert "plain" in csv_table(results)


def changed(**values):
    return {"measurement": {**MEASUREMENT, **values}}


def answered(**values):
    return changed(answers=[{**MEASUREMENT["answers"][0], **values}])


def counted(**values):
    return answered(counts={**asdict(COUNTS), **values})


WRONG = {
    "seconds of 0": (changed(seconds=0), "seconds: .* greater than 0"),
    "negative seconds": (changed(seconds=-1.0), "seconds"),
    "NaN": (json.dumps(changed(seconds=float("nan"))), "NaN is no number of JSON"),
    "an endless number": (json.dumps(changed()).replace("1.5", "1e999"), "seconds"),
    "a negative first token": (changed(first_token_seconds=-0.1), "first_token_seconds"),
    "a negative phase": (changed(phases={"prefill": -1}), "phases.prefill"),
    "negative memory": (changed(peak_bytes=-5), "peak_bytes"),
    "a negative group": (changed(group=-1), "group"),
    "a negative temperature": (changed(cell={**MEASUREMENT["cell"], "temperature": -1.0}), "cell.temperature"),
    "a batch of none": (changed(cell={**MEASUREMENT["cell"], "batch_size": 0}), "cell.batch_size"),
    "an unknown contender": (changed(contender="other"), "contender 'other' is not in the header"),
    "negative tokens": (answered(tokens=[-1]), "answers.0.tokens.0"),
    "negative counts": (counted(forwards=-1), "answers.0.counts.forwards"),
    "lists of other lengths": (counted(accepted_at=[1]), "accepted_at is not as long as tested_at"),
    "more accepted than offered": (counted(accepted_at_rank=[3, 1]), "accepted_at_rank is not as long"),
    "more accepted than drafted": (counted(accepted=9), "accepted 9 of 4 drafted"),
    "resumed: null": ({"resumed": None}, "Input should be an object"),
    "brackets without end": ("[" * 100_000, "nested too deeply"),
    "a long number": (json.dumps(changed()).replace("1000", "1" * 5000), "the line is damaged"),
    "half a character": (json.dumps(answered(text="\ud800")), "half a character"),
}


@pytest.mark.parametrize(("line", "words"), WRONG.values(), ids=WRONG)
def test_a_line_that_cannot_have_been_measured_is_named(tmp_path, line, words):
    with pytest.raises(SpecError, match=rf"x\.jsonl:2: .*{words}"):
        read(tmp_path, {"header": HEADER}, line)


@pytest.mark.parametrize(
    "change",
    [
        {"contenders": {"plain": 1}},
        {"contenders": {"plain": {"spec": {"verifier": "match"}}}},
        {"plan": {"prompts": [{"name": "x"}]}},
        {"plan": {"settings": [1]}},
        {"provenance": []},
    ],
    ids=str,
)
def test_a_header_of_another_shape_is_named(tmp_path, change):
    with pytest.raises(SpecError, match=r"x\.jsonl:1: "):
        read(tmp_path, {"header": {**HEADER, **change}}, {"measurement": MEASUREMENT})


def test_a_header_without_contenders_names_the_first_measurement_of_one(tmp_path):
    with pytest.raises(SpecError, match=r"x\.jsonl:2: contender 'plain' is not in the header"):
        read(tmp_path, {"header": {**HEADER, "contenders": {}}}, {"measurement": MEASUREMENT})


def test_the_same_measurement_twice_is_named_with_both_lines(tmp_path):
    with pytest.raises(
        SpecError, match=r"x\.jsonl:3: measures again what line 2 has \(plain, group 0, turn 0, T = 0, batch 1\)"
    ):
        read(tmp_path, {"header": HEADER}, {"measurement": MEASUREMENT}, {"measurement": MEASUREMENT})


def test_counts_and_tokens_of_zero_are_no_division_by_zero(tmp_path):
    nothing = counted(tested_at=[0], accepted_at=[0], offered_at_rank=[0], accepted_at_rank=[0], forwards=0, committed=0)
    nothing["measurement"]["answers"][0]["tokens"] = []
    results = read(tmp_path, {"header": HEADER}, nothing)
    assert summaries(results, results.cells[0])[0].drafts.acceptance_by_depth == (0.0,)
    assert report(results)


HOSTILE = "=1|<img src=x>\n# x"


def test_names_in_a_file_inject_nothing_into_reports(tmp_path):
    measurement = changed(contender=HOSTILE, cell={**MEASUREMENT["cell"], "dtype": "../<b>"})
    plan = {"prompts": [{"name": HOSTILE, "sha256": "<a>", "num_questions": 1}], "settings": {HOSTILE: HOSTILE}}
    header = {**HEADER, "plan": plan, "contenders": {HOSTILE: {"shape": HOSTILE}}, "provenance": {"cpu": HOSTILE}}
    results = read(tmp_path, {"header": header}, measurement)
    text = report(results)
    assert not any(mark in text for mark in ("<img", "\n# x", "<a>", "<b>"))
    table = next(line for line in text.splitlines() if "=1" in line and line.startswith("|"))
    assert "=1\\|&lt;img src=x> # x" in table
    assert "'=1|<img" in csv_table(results)
    assert [path.parent for path in draw(results, tmp_path)] == [tmp_path] * 2


def test_a_report_names_the_target_and_the_dtype_that_it_had(tmp_path):
    loaded = {"loaded": {"asked": None, "target": "SmolLM2 <x>", "dtype": "bfloat16", "device": "cpu"}}
    results = read(tmp_path, {"header": HEADER}, loaded, {"measurement": MEASUREMENT})
    text = report(results)
    assert "## bfloat16, T = 0, batch 1" in text
    assert "- target: SmolLM2 &lt;x>, bfloat16 on cpu" in text
    assert "- dtypes: the target's own" in text
    assert file_label(results, results.cells[0]) == "bfloat16-T0-batch1"
    before = read(tmp_path, {"header": HEADER}, {"measurement": MEASUREMENT})
    assert file_label(before, before.cells[0]) == "own-dtype-T0-batch1"


def test_the_questions_that_ship_are_read(tmp_path):
    shipped = Path(__file__).parents[2] / "examples" / "questions.jsonl"
    questions, _ = read_questions([shipped], Selection())
    assert len(questions) == 12
    assert {len(question.turns) for question in questions} == {2}
