"""Trace files: whole lines only, and what is wrong with one is said."""

import json

import pytest

from specdec.errors import SpecError
from specdec.trace.files import TraceFile, read_trace


@pytest.fixture
def lines(traced, chain_of, tmp_path):
    traced(chain_of(3))
    return (tmp_path / "t.jsonl").read_text().splitlines(keepends=True)


def read(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    return read_trace(path)


def test_a_trace_that_was_broken_off_has_its_whole_steps_and_no_end(lines, tmp_path):
    trace = read(tmp_path, "".join(lines[:4]) + lines[4][:30])
    assert len(trace.steps) == 3
    assert trace.end is None


def changed(line, **values):
    ((kind, record),) = json.loads(line).items()
    return json.dumps({kind: {**record, **values}}) + "\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "no whole line"),
        (lambda lines: ['{"turns": []}\n'], ":1: no trace of"),
        (lambda lines: [changed(lines[0], format=7)], "format 7"),
        (lambda lines: [lines[0], "{\n"], ":2: the line is damaged"),
        (lambda lines: [lines[0], "[]\n"], ":2: expected an object with one key"),
        (lambda lines: [lines[0], lines[0]], ":2: got a line of kind 'trace'"),
        (lambda lines: [lines[0], lines[-1], lines[1]], ":3: got a line of kind 'step'"),
        (lambda lines: [lines[0], changed(lines[1], next_p="high")], ":2: next_p"),
        (lambda lines: [lines[0], changed(lines[1], ending="bored")], ":2: ending"),
        (lambda lines: [lines[0], changed(lines[1], texts=[])], ":2: the lists by node differ in length"),
        (lambda lines: [lines[0], changed(lines[1], parents=[-1, 2, 1, 0])], ":2: a node's parent is missing"),
        (lambda lines: [lines[0], changed(lines[1], path=[99])], ":2: path or source"),
        (lambda lines: [lines[0], changed(lines[1], next_p=float("nan"))], ":2: the line is damaged: NaN"),
        (lambda lines: [lines[0], changed(lines[1], next_p=-0.5)], ":2: next_p"),
        (lambda lines: [lines[0], changed(lines[1], p=[2.0, None, None, None])], ":2: p.0"),
        (lambda lines: [lines[0], changed(lines[1], seconds={"draft": -1.0})], ":2: seconds.draft"),
        (lambda lines: [lines[0], changed(lines[1], tokens=[-4, 1, 2, 3])], ":2: tokens.0"),
        (lambda lines: [lines[0], changed(lines[-1], seconds=-1)], ":2: seconds"),
        (lambda lines: [changed(lines[0], seed=-1)], ":1: seed"),
        (lambda lines: [lines[0], "[" * 100_000 + "\n"], ":2: the line is damaged: it is nested too deeply"),
        (lambda lines: [lines[0], changed(lines[1], emitted_texts=[])], ":2: emitted and emitted_texts"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_line(lines, tmp_path, change, words):
    with pytest.raises(SpecError) as error:
        read(tmp_path, "".join(change(lines)))
    assert words in str(error.value)


def test_an_earlier_trace_is_replaced_and_another_file_is_not(lines, tmp_path):
    with TraceFile(tmp_path / "t.jsonl"):
        assert (tmp_path / "t.jsonl").read_text() == ""
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(SpecError, match="is no trace"):
        TraceFile(other)
    assert other.read_text() == "mine"


def test_a_trace_that_cannot_be_written_says_so_before_anything_runs(tmp_path):
    with pytest.raises(SpecError, match="cannot be written"):
        TraceFile(tmp_path / "gone" / "t.jsonl")


def test_one_process_at_a_time_writes_a_trace(lines, tmp_path):
    with TraceFile(tmp_path / "t.jsonl"), pytest.raises(SpecError, match=r"t\.jsonl: is being written by another process"):
        TraceFile(tmp_path / "t.jsonl")


def test_a_full_disk_is_an_error_that_names_the_trace(traced, chain_of, tmp_path, room_for):
    with room_for(100), pytest.raises(SpecError, match=r"t\.jsonl: cannot be written: File too large"):
        traced(chain_of(3))
