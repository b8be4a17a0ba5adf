"""Whatever a path looks like, it is there or it is not: one module asks, and nothing but its answers reaches the user."""

import ast
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import specdec
from specdec import compose
from specdec.cli import app
from specdec.errors import SpecdecError
from specdec.files import paths
from specdec.heads.checkpoint_path import locate_head
from specdec.training.reading import read_training_spec

NAMES = {
    "no user": "~nosuchuser/x",
    "no user, NUL": "~\0/x",
    "long": "x" * 5000,
    "deep": "a/" * 3000 + "x",
    "NUL": "a\0b/c",
    "half a character": "a\ud800/b",
    "looping link": "loop",
    "below a looping link": "./loop/x",
    "below a file": "./file/x",
}
ASKING = {"expanduser", "resolve", "is_dir", "is_file", "exists", "samefile", "glob", "rglob", "cwd"}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("file").write_text("")


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=["no user", "long", "NUL", "looping link"])
def telling_name(request):
    """One of each error of the system; with each way to give a path, the others would take half a minute."""
    return NAMES[request.param]


def test_a_path_that_cannot_be_is_nowhere(name):
    path = paths.expanded(name)
    assert not paths.is_file(path)
    assert not paths.is_folder(path)
    assert not paths.exists(path)
    assert paths.matching(path, "*") == []
    assert paths.is_same(path, path)
    assert not paths.is_same(path, Path("elsewhere"))
    assert paths.resolved(path)
    assert paths.from_here(path) == path


def test_a_path_that_is_there_is_found(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.is_file(paths.expanded("~/f"))
    assert paths.is_same(tmp_path / "link", tmp_path / "f")
    assert paths.is_same(tmp_path / "new", tmp_path / "." / "new")
    monkeypatch.chdir(tmp_path)
    assert paths.from_here(tmp_path / "f") == Path("f")


def test_a_working_folder_that_was_deleted_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert paths.from_here(tmp_path / "f") == tmp_path / "f"
    assert compose.resolve("plain", compose.load_catalog())


USES = {
    "strategy": lambda name: specdec.load(name),
    "strategy file": lambda name: specdec.load(f"{name}.yaml"),
    "target": lambda name: specdec.load("plain", target=name),
    "target path": lambda name: specdec.load("plain", target=Path(name)),
    "model": lambda name: specdec.load("plain", target={"use": "huggingface", "model": name}),
    "revision": lambda name: specdec.load("plain", target={"use": "huggingface", "model": "nobody/nothing", "revision": name}),
    "draft model": lambda name: specdec.load({"drafter": {"use": "model", "model": name}}),
    "head": lambda name: specdec.load({"drafter": {"use": "eagle", "head": name}}),
    "tree": lambda name: specdec.load({"drafter": {"use": "ngram"}, "tree": {"use": "fixed", "file": name}}),
    "tree file": lambda name: specdec.load({"drafter": {"use": "ngram"}, "tree": {"use": "fixed", "file": f"{name}.yaml"}}),
    "datastore": lambda name: specdec.load({"drafter": {"use": "suffix", "datastore": name}}),
    "successors": lambda name: specdec.load({"drafter": {"use": "recycling", "start": name}}),
    "located head": lambda name: locate_head(name, "eagle", download=False),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_path_that_cannot_be_is_an_error_of_ours_wherever_it_is_given(telling_name, use):
    with pytest.raises(SpecdecError):
        assert use(telling_name) is not None


def test_a_spec_that_extends_what_cannot_be_says_so(name, tmp_path):
    for parent in (name, f"{name}.yaml"):
        # Written as JSON, whose escapes YAML reads too.
        text = json.dumps({"extends": parent}) if "\ud800" not in parent else '{"extends": "a\\ud800.yaml"}'
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(SpecdecError, match=r"s\.yaml"):
            compose.resolve(tmp_path / "s.yaml", compose.load_catalog())


def test_a_chain_of_specs_without_end_is_an_error(tmp_path):
    for number in range(200):
        (tmp_path / f"s{number}.yaml").write_text(f"extends: s{number + 1}.yaml\n")
    with pytest.raises(SpecdecError, match="a chain of more than 32 specs"):
        compose.resolve(tmp_path / "s0.yaml", compose.load_catalog())


def test_a_training_spec_with_paths_that_cannot_be_is_an_error_or_read(name, tmp_path):
    if "\ud800" in name or "\0" in name:
        pytest.skip("YAML has no such text")
    spec = {
        "name": "n",
        "target": {"use": "huggingface", "model": name},
        "head": {"kind": "eagle"},
        "data": {"sources": {"a": {"path": name}}, "validate_on": "a"},
        "budget": {"steps": 1},
        "features": name,
        "output": name,
    }
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(spec))
    assert read_training_spec(tmp_path / "t.yaml").name == "n"
    ran = CliRunner().invoke(app, ["train", str(tmp_path / "t.yaml")])
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit), ran.exception


COMMANDS = [
    ["check", "NAME"],
    ["check", "NAME.yaml"],
    ["check", "plain", "--target", "NAME"],
    ["generate", "plain", "--prompt-file", "NAME"],
    ["bench", "-s", "plain", "--prompts", "NAME", "-o", "NAME"],
    ["report", "NAME"],
    ["compare", "NAME", "NAME"],
    ["trace", "show", "NAME"],
    ["tree", "show", "NAME"],
    ["tree", "convert", "NAME", "-o", "NAME"],
    ["tree", "search", "-a", "NAME", "-c", "NAME", "-o", "NAME"],
    ["simulate", "-a", "NAME", "-c", "NAME", "--tree", "NAME"],
    ["profile", "NAME", "-o", "NAME"],
    ["roofline", "NAME"],
    ["acceptance", "plain", "--prompts", "NAME", "-o", "NAME"],
    ["train", "NAME"],
    ["data", "distill", "NAME", "NAME"],
    ["datastore", "build", "NAME", "-o", "NAME"],
    ["datastore", "successors", "NAME", "-o", "NAME"],
    ["verify", "NAME"],
    ["verify", "--callable", "NAME:f"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_cannot_be_ends_every_command_in_a_message(telling_name, command):
    ran = CliRunner().invoke(app, [word.replace("NAME", telling_name) for word in command])
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit), ran.exception


def test_one_module_asks_the_system_about_paths():
    root = Path(specdec.__file__).parent
    asked = [
        f"{path.relative_to(root)}:{node.lineno}: {node.func.attr}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root) != Path("files/paths.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING
    ]
    assert asked == []
