"""docs/trees.md is true: its commands print what it says, its options and names exist."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.tree_search.formats import TreeFormat

PAGE = (Path(__file__).parents[2] / "docs" / "trees.md").read_text()


def test_its_commands_print_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yaml = re.search(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / yaml[1]).write_text(yaml[2])
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for command, expected in blocks:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        lines = [line.rstrip() for line in result.stdout.splitlines()]
        assert lines == expected.splitlines(), result.output


def test_every_command_and_option_that_it_names_exists():
    commands = set(re.findall(r"specdec ((?:tree \w+)|profile|acceptance|roofline|simulate)\b", PAGE))
    assert commands == {"profile", "acceptance", "roofline", "simulate", "tree search", "tree show", "tree convert"}
    texts = [CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"}).stdout for command in commands]
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w-]+", PAGE)):
        assert any(option in text for text in texts), option


def test_its_table_names_every_format():
    table = PAGE[PAGE.index("| `--from`, `--to` |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| (\w+) \|", table, re.MULTILINE)
    assert rows == [kind.value for kind in TreeFormat]


@pytest.mark.parametrize("name", re.findall(r"`(specdec\.[\w.]+)`", PAGE))
def test_its_python_names_exist(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute)
