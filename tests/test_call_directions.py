"""No code calls what stands above it, but for what is handed down to it: callbacks, guards, generators, parts."""

import json

import pytest
from call_directions import recorded
from typer.testing import CliRunner

import specdec
from specdec.cli import app

SPEC = """\
target: {use: tabular, vocab: 26, random: {order: 1, sharpness: 4.0}}
drafter: {use: ngram}
tree: {use: dynamic, width: 2, depth: 3, nodes: 6}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.yaml").write_text(SPEC)
    (tmp_path / "q.jsonl").write_text(json.dumps({"question_id": 0, "category": "a", "turns": ["abc"]}) + "\n")
    return tmp_path


def load_and_generate():
    decoder = specdec.load("letters.yaml")
    decoder.generate(["abc"], max_new_tokens=8)
    list(decoder.stream("abc", max_new_tokens=8, step_callback=lambda info: None))


def command(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code in (0, 3), result.output


def verify():
    sizes = ("--models", "1", "--vocab", "3", "--depth", "1", "--budget", "0.1")
    command("verify", "letters.yaml", *sizes)


def bench():
    command("bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--max-new-tokens", "4")


@pytest.mark.slow
@pytest.mark.parametrize("use", [load_and_generate, verify, bench])
def test_no_call_goes_to_a_higher_tier_but_to_what_was_handed_down(use, folder):
    with recorded() as upward:
        use()
    assert upward.seen > 1000
    assert upward.unexplained == []


def test_a_call_that_goes_up_is_seen():
    from specdec.files import atomic
    from specdec.interfaces.declarations import context_in_words

    source = "def lower(up):\n    return up(1, None)\n"
    made = {}
    exec(compile(source, atomic.__file__, "exec"), made)
    with recorded() as upward:
        made["lower"](context_in_words)
    assert upward.unexplained == ["files/atomic.py:lower -> interfaces/declarations.py:context_in_words"]
