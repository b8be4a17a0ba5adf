"""Files for drafters without a model, made and used from the terminal."""

import json

import pytest
from tiny_tokenizers import bytes_tokenizer
from typer.testing import CliRunner

from specdec.cli import app
from specdec.targets.text_codec import TokenizerCodec

TEXT = "The quick brown fox jumps over the lazy dog, and the lazy dog does not mind at all."


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("command", ["build", "successors"])
def test_a_file_that_cannot_be_read_is_told_in_a_line_and_nothing_is_written(command, tmp_path):
    result = run("datastore", command, tmp_path / "absent.txt", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "absent.txt: cannot be read" in result.stderr
    assert "Traceback" not in result.output
    (tmp_path / "bad.jsonl").write_text("{")
    result = run("datastore", command, tmp_path / "bad.jsonl", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "bad.jsonl:1: expected 'messages', or 'question' and 'answer'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["build", "successors"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(command, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    for output, words in (tmp_path, "is a folder"), (tmp_path / "nowhere" / "out", "there is no folder"):
        result = run("datastore", command, tmp_path / "fox.txt", "-o", output)
        assert result.exit_code == 2
        assert words in result.stderr


@pytest.mark.parametrize(("name", "words"), [("nowhere.store", "no such file"), (".", "a folder, not a file")])
def test_a_spec_that_names_no_such_file_is_refused_with_its_line(tmp_path, name, words):
    (tmp_path / "s.yaml").write_text(f"name: s\ndrafter:\n  use: suffix\n  datastore: {name}\n")
    result = run("check", tmp_path / "s.yaml")
    assert result.exit_code == 2
    assert f"s.yaml:4: drafter.datastore: {name}: {words}" in result.stderr


def test_an_answer_in_a_store_or_behind_its_question_has_no_tokens_that_the_tokenizer_adds(
    compose, table, watched, chain_of, tmp_path, monkeypatch
):
    codec = TokenizerCodec(bytes_tokenizer(adds="<s> $A </s>"))
    target = watched(table(262), codec)
    monkeypatch.setattr("specdec.cli.datastore.load", lambda *given, **named: compose(target, chain_of(2)))
    read = []
    monkeypatch.setattr("specdec.cli.datastore._enter", lambda tables, model, ids, **named: read.append(ids) or len(ids))
    (tmp_path / "hello.txt").write_text("hello")
    stored = run("datastore", "build", tmp_path / "hello.txt", "-o", tmp_path / "hello.store")
    assert "1 texts, 5 tokens" in stored.stdout
    asked = {"question": "hi", "answer": "ok"}
    (tmp_path / "hi.jsonl").write_text(json.dumps(asked) + "\n")
    run("datastore", "successors", tmp_path / "hi.jsonl", tmp_path / "hello.txt", "-o", tmp_path / "hi.tables")
    assert read == [
        codec.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nok", opens=False),
        codec.encode("<s>hello", opens=False),
    ]


@pytest.mark.slow
def test_texts_are_stored_and_continued_from_the_terminal(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    asked = {"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": TEXT}]}
    (tmp_path / "fox.jsonl").write_text(json.dumps(asked) + "\n")
    stored = run("datastore", "build", tmp_path / "fox.txt", tmp_path / "fox.jsonl", "-o", tmp_path / "fox.store")
    assert stored.exit_code == 0, stored.output
    assert "2 texts, 40 tokens" in stored.stdout
    tables = run("datastore", "successors", tmp_path / "fox.jsonl", "-o", tmp_path / "fox.tables", "--candidates", 4)
    assert tables.exit_code == 0, tables.output
    assert "21 tokens" in tables.stdout
    for drafter in ("{use: suffix, datastore: fox.store}", "{use: recycling, start: fox.tables}"):
        (tmp_path / "s.yaml").write_text(f"name: s\ndrafter: {drafter}\ntree: {{use: dynamic}}\n")
        made = run("generate", tmp_path / "s.yaml", "The quick brown fox", "--raw", "--max-new-tokens", 8, "--json")
        assert made.exit_code == 0, made.output
        assert json.loads(made.stdout)["draft_acceptance_rate"] is not None
