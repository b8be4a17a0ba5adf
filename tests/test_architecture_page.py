"""docs/architecture.md and tests/README.md name every folder once, and nothing that does not exist."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specdec"
PAGES = {"docs/architecture.md": (PACKAGE, ROOT), "tests/README.md": (ROOT / "tests", ROOT, PACKAGE)}
"""The pages, each with the folders that its paths start from."""


def quoted(page: str) -> list[str]:
    """The single words in backquotes, outside of code blocks."""
    return re.findall(r"`([\w./:]+)`", (ROOT / page).read_text())


@cache
def defined() -> frozenset[str]:
    """Classes and their members, as `Class` and `Class.member`."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                members = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
                members += [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
                names |= {node.name, *(f"{node.name}.{member}" for member in members)}
    return frozenset(names)


BESIDE_THE_MIRROR = {"rules", "bars", "plugin_example", "data", "support"}
"""Folders of tests/ that mirror no folder of the package; tests/README.md has a line for each."""


def folders_with_code() -> set[str]:
    return {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")}


def tiers() -> list[list[str]]:
    """The names in the table of folders, by tier."""
    rows = re.findall(r"^\| (\d+) \| \(?`([\w.]+)/?`\)? \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    return [[name.removesuffix(".py") for _, name in group] for _, group in groupby(rows, key=lambda row: int(row[0]))]


def test_every_folder_of_the_package_has_exactly_one_line():
    named = Counter(name for tier in tiers() for name in tier if not (PACKAGE / f"{name}.py").exists())
    assert named == dict.fromkeys(folders_with_code(), 1)


def test_the_tiers_are_those_that_the_linter_keeps():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    kept = [
        {name.removeprefix("specdec.") for name in re.findall(r"[\w.]+", re.sub(r"\([^)]*\)", "", layer))} for layer in layers
    ]
    assert [set(tier) for tier in tiers()] == [tier for tier in kept if tier != {"__main__"}]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page):
    paths = [word for word in quoted(page) if "/" in word or word.endswith((".py", ".md", ".toml"))]
    assert len(paths) > 5
    assert [path for path in paths if not any((folder / path).exists() for folder in PAGES[page])] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_class_that_a_page_names_is_defined(page):
    classes = [word for word in quoted(page) if re.match(r"[A-Z]\w*[a-z]", word)]
    assert [name for name in classes if name not in defined()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_name_in_a_module_is_defined_there(page):
    """`name` in `module.py` is where a reader is sent."""
    pairs = re.findall(r"`(\w+)` in `([\w/]+\.py)`", (ROOT / page).read_text())
    missing = [(n, m) for n, m in pairs if not re.search(rf"^(?:class|def) {n}\b", (PACKAGE / m).read_text(), re.MULTILINE)]
    assert missing == []


def test_the_page_answers_each_question_once():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Where a change belongs")[2]
    rows = Counter(re.findall(r"^\| ([^|`]+?) \|", table, re.MULTILINE))
    assert len(rows) > 20
    assert [what for what, count in rows.items() if count > 1] == []


def test_the_fixtures_that_are_named_exist():
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "tests" / "README.md").read_text().partition("| fixture |")[2], re.MULTILINE)
    shared = {
        node.name for node in ast.parse((ROOT / "tests" / "conftest.py").read_text()).body if isinstance(node, ast.FunctionDef)
    }
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 5
    assert named <= shared


def test_tests_mirror_the_package_and_what_stands_beside_is_named():
    page = (ROOT / "tests" / "README.md").read_text()
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")} - {Path()}
    mirrored = [folder for folder in folders if folder.parts[0] not in BESIDE_THE_MIRROR]
    assert [folder for folder in mirrored if not (PACKAGE / folder).is_dir()] == []
    assert [name for name in sorted(BESIDE_THE_MIRROR) if f"`{name}/`" not in page] == []


def test_no_test_is_named_after_a_ticket():
    names = [
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert [name for name in names if re.match(r"test_[a-z]?\d+_", name)] == []
