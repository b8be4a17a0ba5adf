"""JSON lines: one way to parse them, and one to append them."""

import json

import pytest

from specdec.errors import SpecError
from specdec.files.jsonl import append_lines, cut_unfinished_line, parse_json, text_lines


def test_lines_are_appended_in_folders_that_are_made_and_read_back(tmp_path):
    path = tmp_path / "a" / "x.jsonl"
    append_lines(path, [{"a": "é"}])
    append_lines(path, [{"b": 1}, {"c": None}])
    assert [json.loads(line) for _, line in text_lines(path)] == [{"a": "é"}, {"b": 1}, {"c": None}]
    append_lines(tmp_path / "y.jsonl", [{"a": "é"}], only_ascii=True)
    assert (tmp_path / "y.jsonl").read_bytes().isascii()


def test_a_text_that_is_no_unicode_is_written_without_its_half_characters(tmp_path):
    append_lines(tmp_path / "x.jsonl", [{"a": "b\ud800c"}])
    assert [parse_json(line) for _, line in text_lines(tmp_path / "x.jsonl")] == [{"a": "b?c"}]


def test_an_unfinished_line_is_cut_off(tmp_path):
    (tmp_path / "x").write_text("one\ntwo\nthr")
    assert cut_unfinished_line(tmp_path / "x") == 8
    assert (tmp_path / "x").read_text() == "one\ntwo\n"


def test_a_full_disk_names_the_file(tmp_path, room_for):
    with room_for(4), pytest.raises(SpecError, match=r"x\.jsonl: cannot be written: File too large"):
        append_lines(tmp_path / "x.jsonl", [{"a": "bcdefgh"}])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, '"\\ud800"', '{"\\uDFFF": 1}', "NaN", "[-Infinity]", "", b"\xff"],
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize(("text", "value"), [('"\\ud83d\\ude00"', "😀"), (b'"\xc3\xa9"', "é"), ("1e5", 1e5)])
def test_json_is_read_whole_characters_included(text, value):
    assert parse_json(text) == value


def test_files_that_were_written_with_nan_can_still_be_read_where_that_is_allowed():
    assert str(parse_json("NaN", nan=True)) == "nan"
