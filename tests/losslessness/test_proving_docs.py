"""docs/proving.md is true: its commands print what it says, and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
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
