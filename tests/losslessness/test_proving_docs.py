"""docs/proving.md is true: its commands print what it says, and its Python runs."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specdec
from specdec.cli import app
from specdec.errors import SpecError
from specdec.losslessness.external.callables import ask, find_callable
from specdec.losslessness.levels import Level

PAGE = Path(__file__).parent.parent.parent / "docs" / "proving.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(PAGE.read_text())


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "console"])
def test_a_command_succeeds_and_prints_the_lines_that_the_page_shows(text):
    command, *expected = text.strip().splitlines()
    result = CliRunner().invoke(app, shlex.split(command.removeprefix("$ "))[1:])
    assert result.exit_code == 0, result.output
    assert set(expected) <= set(result.stdout.splitlines())


def test_every_level_is_in_the_table_and_has_a_section():
    page = PAGE.read_text()
    assert set(re.findall(r"^\| `(\w+)` \(L", page, re.MULTILINE)) == {level.value for level in Level}
    assert {level.value for level in Level} <= set(re.findall(r"^## (\w+)$", page, re.MULTILINE))


def test_the_function_of_the_page_runs(tiny_llama, tmp_path, monkeypatch):
    source = next(text for language, text in BLOCKS if language == "python")
    source = source.replace('"TARGET"', repr(str(tiny_llama))).replace('"DRAFT"', repr(str(tiny_llama)))
    (tmp_path / "assisted_of_the_page.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert len(ask(find_callable("assisted_of_the_page:answer"), [1, 2, 3], 6, 0, 16).tokens) == 6


ROLLOUT = """\
target: {use: tabular, vocab: 6, random: {order: 1}}
drafter: {use: tabular, vocab: 6, random: {seed: 7}}
tree: {use: chain, length: 1, draw: sampled}
verifier: {use: chain}
sampling: {temperature: 1.0}
"""


@pytest.mark.slow
def test_the_consumer_of_certificates_on_the_page_runs_and_refuses_a_lossy_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = [text for language, text in BLOCKS if language == "python"][-1]
    names = {"specdec": specdec, "prompts": [[1, 2]]}
    lossy = ROLLOUT.replace("{use: chain}\ns", "{use: lenience}\nallow_lossy: true\ns")
    for text, refusal in ((ROLLOUT, None), (lossy, "a lossless strategy is required")):
        (tmp_path / "rollout.yaml").write_text(text)
        made = CliRunner().invoke(app, ["verify", "rollout.yaml", "--budget", "0.5", "-o", "rollout.certificate.json"])
        assert made.exit_code == 0, made.output
        with nullcontext() if refusal is None else pytest.raises(SpecError, match=refusal):
            exec(source, dict(names))
