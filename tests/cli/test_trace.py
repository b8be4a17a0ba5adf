"""`generate --trace` and `trace show` as a user runs them."""

import json

import pytest
from typer.testing import CliRunner

from specdec.cli import app

SPEC = """\
name: letters
target: {use: tabular, vocab: 3, random: {order: 1, sharpness: 4.0}}
drafter: {use: ngram}
tree: {use: dynamic, width: 2, depth: 3, nodes: 6}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.yaml").write_text(SPEC)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_generation_is_written_down_and_shown(folder):
    plain = run("generate", "letters.yaml", "abab", "--max-new-tokens", "20", "--json")
    traced = run("generate", "letters.yaml", "abab", "--max-new-tokens", "20", "--json", "--trace", "t.jsonl")
    assert json.loads(plain.stdout)["tokens"] == json.loads(traced.stdout)["tokens"]
    result = run("trace", "show", "t.jsonl", "-o", "page.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("page.html: ")
    assert (folder / "page.html").read_text().startswith("<!doctype html>")
    assert run("trace", "show", "t.jsonl").stdout.startswith("t.html: ")
    shown = json.loads(run("trace", "show", "t.jsonl", "--json").stdout)
    assert (shown["strategy"], shown["drafters"]) == ("letters", ["ngram"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "letters.yaml", "abab", "--trace", "letters.yaml"], "letters.yaml is there and is no trace"),
        (["generate", "letters.yaml", "abab", "--trace", "gone/t.jsonl"], "cannot be written"),
        (["trace", "show", "letters.yaml"], "no JSON"),
        (["trace", "show", "gone.jsonl"], "cannot be read"),
        (["trace", "show", "t.jsonl", "-o", "t.jsonl"], "is the trace itself"),
        (["trace", "show", "t.jsonl", "-o", "gone/page.html"], "there is no folder gone"),
    ],
)
def test_what_cannot_be_done_is_a_message_and_exit_two(folder, arguments, words):
    run("generate", "letters.yaml", "abab", "--max-new-tokens", "8", "--trace", "t.jsonl")
    before = (folder / "t.jsonl").read_bytes(), (folder / "letters.yaml").read_text()
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words.replace("no JSON", "damaged") in result.stderr
    assert "Traceback" not in result.output
    assert before == ((folder / "t.jsonl").read_bytes(), (folder / "letters.yaml").read_text())


def test_a_trace_that_was_broken_off_is_shown_as_such(folder):
    run("generate", "letters.yaml", "abab", "--max-new-tokens", "20", "--trace", "t.jsonl")
    assert "broken off" not in run("trace", "show", "t.jsonl").stdout
    (folder / "part.jsonl").write_bytes((folder / "t.jsonl").read_bytes()[:-20])
    assert run("trace", "show", "part.jsonl").stdout.endswith("; the trace was broken off\n")
