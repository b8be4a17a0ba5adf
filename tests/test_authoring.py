"""The two doors: names for users in `specdec`, names for authors in `specdec.authoring`, and classes passed by hand."""

import ast
from pathlib import Path

import pytest

import specdec
from specdec import authoring
from specdec.config.catalog import load_catalog
from specdec.errors import PluginError, SpecError
from specdec.interfaces.declarations import Kind
from specdec.verifiers.match import Match

EXAMPLE = Path(__file__).parent / "plugin_example"
TABLE = {"use": "tabular", "vocab": 4, "random": {"order": 1, "seed": 1}}


class Mine(Match):
    name = "mine"
    Options = Match.Options


def spec(verifier: str) -> dict:
    return {"target": TABLE, "drafter": {"use": "none"}, "verifier": {"use": verifier}}


def imported_from_specdec(folder: Path) -> set[str]:
    modules = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "specdec":
                modules.add(node.module)
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names if alias.name.split(".")[0] == "specdec"}
    return modules


def test_the_plugin_example_imports_from_authoring_alone():
    assert imported_from_specdec(EXAMPLE / "src") == {"specdec.authoring"}


def test_its_tests_import_from_the_testing_kit_besides():
    assert imported_from_specdec(EXAMPLE / "tests") <= {"specdec.authoring", "specdec.testing"}


@pytest.mark.parametrize("module", [specdec, authoring])
def test_every_name_of_a_door_is_there_and_none_is_private(module):
    assert sorted(module.__all__, key=str.lower) == sorted(set(module.__all__), key=str.lower)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert not name.startswith("_")


def test_a_class_of_ones_own_is_loaded_without_an_entry_point():
    decoder = specdec.load(spec("mine"), parts=[Mine])
    assert type(decoder.verifier) is Mine
    assert decoder.generate([[1]], max_new_tokens=3)[0].tokens


def test_a_class_of_ones_own_is_checked_without_weights():
    assert specdec.check(spec("mine"), parts=[Mine]).parts[Kind.VERIFIER].cls is Mine


def test_passing_a_class_changes_nothing_for_others():
    specdec.check(spec("mine"), parts=[Mine])
    assert "mine" not in load_catalog().registry.parts[Kind.VERIFIER]
    with pytest.raises(SpecError, match="no verifier is called 'mine'"):
        specdec.check(spec("mine"))


class Taken(Match):
    name = "match"
    Options = Match.Options


class Nameless(Match):
    pass


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Taken, "'specdec' has a verifier called 'match' already; give Taken another name"),
        (Nameless, "verifier Nameless has no name"),
        (dict, "dict is no Target, Drafter, TreeBuilder or Verifier"),
        ("match", "'match' is no Target"),
    ],
)
def test_a_class_that_cannot_serve_is_refused_by_name(part, said):
    with pytest.raises(PluginError, match=said):
        specdec.check(spec("match"), parts=[part])
