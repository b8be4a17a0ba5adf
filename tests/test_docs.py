"""The documentation is true: its YAML fits, its commands print what it says, and what it names exists."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from specdec.cli import app
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.interfaces.declarations import Kind

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "strategies" / "README.md", ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match) for match in FENCE.findall(page.read_text())]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder that holds the YAML of all pages, under the names that they give in their first line."""
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml":
                (tmp_path / block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
    return tmp_path


def commands() -> list[tuple[str, str]]:
    """The commands of all pages and what they are said to print."""
    texts = [block.text for page in PAGES for block in blocks(page) if block.language == "console"]
    return [(text.splitlines()[0].removeprefix("$ "), text.partition("\n")[2]) for text in texts]


def without_numbers(text: str) -> str:
    return re.sub(r"#+|\d+\.\d+(e-?\d+)?", "#", text)


@pytest.mark.parametrize(("command", "expected"), [c for c in commands() if " generate " not in c[0]])
def test_a_command_prints_what_the_page_says(folder, command, expected):
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert without_numbers(result.stdout + result.stderr) == without_numbers(expected)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c[0] for c in commands() if " generate " in c[0]])
def test_a_generate_command_runs(folder, command):
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--max-new-tokens", "24"])
    assert result.exit_code == 0, result.output


def test_every_yaml_but_the_wrong_one_fits(folder):
    catalog = load_catalog()
    names = {path.name for path in folder.glob("*.yaml")} - {"wrong.yaml"}
    assert names == {"mine.yaml", "example.yaml"}
    for name in names:
        check(read(name, catalog), catalog)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(capsys):
    for block in blocks(ROOT / "README.md"):
        if block.language == "python":
            exec(compile(block.text, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_commands_in_the_table_exist():
    table = re.findall(r"^\| `specdec (\w+(?: show)?)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) >= 7
    for command in table:
        assert CliRunner().invoke(app, [*command.replace("[KIND]", "").split(), "--help"]).exit_code == 0, command


def test_the_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), (page, link)


def test_the_table_of_fitting_parts_says_what_check_says():
    rows = re.findall(r"^\|[^|]*\| (`[^|]*) \| (`[^|]*) \|$", (ROOT / "strategies" / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 8
    catalog = load_catalog()
    table = {"use": "tabular", "vocab": 2, "random": {}}
    few = {"temperature": 1.0, "draft": {"temperature": 1.0, "top_k": 2}}
    for trees, verifiers in rows:
        for name, options in re.findall(r"`(\w+)(?: (\{[^}]*\}))?`", trees):
            shape = {"widths": [2]} if "widths" in catalog.registry.find(Kind.TREE, name).Options.model_fields else {}
            tree = {"use": name, **shape, **(yaml.safe_load(options) if options else {})}
            fitting = re.findall(r"`(\w+)`", verifiers)
            for verifier in catalog.registry.parts[Kind.VERIFIER].keys() - {"judge"}:  # which needs a trained head
                spec = {"target": table, "drafter": table, "tree": tree, "verifier": {"use": verifier}, "sampling": few}
                if verifier in fitting:
                    check(read(spec, catalog), catalog)
                else:
                    with pytest.raises(Exception, match=r"do not fit together|allow_lossy"):
                        check(read(spec, catalog), catalog)
