"""An installed plug-in that is broken is left out, with a warning that says how to turn it off; everything else works."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.config.catalog import load_catalog
from specdec.errors import SpecdecWarning
from specdec.interfaces.declarations import Kind
from specdec.plugins.loading import load_registry

LIBRARY = """
from pathlib import Path
from specdec.plugins.hookspecs import hookimpl

@hookimpl
def specdec_library():
    return [Path(__file__).parent / "files"]
"""
VERIFIER = """
from specdec.plugins.hookspecs import hookimpl
from specdec.verifiers.match import Match
from specdec.interfaces.parts import PartOptions, Verifier

class Other(Verifier):
    name = {name!r}
    Options = PartOptions
    declares = Match.__dict__["declares"]
    build = Match.__dict__["build"]
    verify = Match.__dict__["verify"]

@hookimpl
def specdec_verifiers():
    return [Other]
"""
SOUND = VERIFIER.format(name="other")
BROKEN = {
    "raises at import": ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    "is no Python": ("def", "cannot be imported: SyntaxError"),
    "leaves by sys.exit": ("import sys; sys.exit('bye')", "cannot be imported: SystemExit: bye"),
    "raises a BaseException": ("class Odd(BaseException): pass\nraise Odd('x')", "cannot be imported: Odd: x"),
    "lacks a module": ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
    "has an unknown hook": (LIBRARY.replace("specdec_library", "specdec_libary"), "specdec_libary"),
    "fails in a hook": (LIBRARY.replace("return", "raise SystemExit(3);"), "fails in specdec_library: SystemExit: 3"),
    "returns no list": (SOUND.replace("[Other]", "Other"), "expected a list"),
    "has a part that is none": (SOUND.replace("[Other]", "[int]"), "is not a subclass"),
    "takes a name of ours": (
        VERIFIER.format(name="match"),
        "both 'specdec' and 'broken-plugin' register a verifier called 'match'",
    ),
    "names no folder": (LIBRARY, "is no folder"),
    "names a path that none could have": (LIBRARY.replace('"files"', '"\\0"'), "is no folder"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package of one module, as pip would leave it behind."""
    monkeypatch.delenv("SPECDEC_DISABLE_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, code: str):
        module = package.replace("-", "_")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[specdec]\nown = {module}.plugin\n")
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text("")
        (tmp_path / module / "plugin.py").write_text(code)
        modules.append(module)
        return tmp_path / module

    modules = []
    yield installed
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        del sys.modules[name]


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_left_out_and_the_others_work(install, code, reason):
    install("broken-plugin", code)
    install("sound-plugin", SOUND)
    way_out = r".*\n  SPECDEC_DISABLE_PLUGINS=broken-plugin turns it off"
    with pytest.warns(SpecdecWarning, match=rf"(?s)left out: plug-in 'broken-plugin'.*{re.escape(reason)}{way_out}"):
        registry = load_registry()
    assert registry.parts[Kind.VERIFIER]["other"].package == "sound-plugin"
    assert registry.parts[Kind.VERIFIER]["match"].package == "specdec"
    assert list(registry.broken) == ["broken-plugin"]


def test_an_interrupt_at_import_is_an_interrupt(install):
    install("slow-plugin", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_registry()


def test_commands_go_on_and_list_shows_what_is_left_out(install, monkeypatch):
    install("broken-plugin", "1 / 0")
    checked = CliRunner().invoke(app, ["check", "plain"])
    assert checked.exit_code == 0
    assert "warning: left out: plug-in 'broken-plugin' cannot be imported: ZeroDivisionError" in checked.stderr
    rows = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)["plug-ins left out"]
    assert [row["name"] for row in rows] == ["broken-plugin"]
    assert "SPECDEC_DISABLE_PLUGINS=broken-plugin" in rows[0]["what it is"]
    assert "ZeroDivisionError" in CliRunner().invoke(app, ["list", "trees"]).stdout
    monkeypatch.setenv("SPECDEC_DISABLE_PLUGINS", "broken-plugin")
    assert CliRunner().invoke(app, ["check", "plain"]).stderr == ""


def test_a_library_that_repeats_a_strategy_is_left_out_and_both_files_are_named(install):
    folder = install("repeating", LIBRARY)
    (folder / "files" / "strategies").mkdir(parents=True)
    theirs = folder / "files" / "strategies" / "plain.yaml"
    theirs.write_text("drafter: {use: ngram}\n")
    with pytest.warns(SpecdecWarning, match=r"left out: plug-in 'repeating'") as caught:
        catalog = load_catalog()
    ours = catalog.library.find_strategy("plain")
    assert ours != theirs
    message = str(caught[0].message)
    assert (str(ours) in message, str(theirs) in message, "SPECDEC_DISABLE_PLUGINS=repeating" in message) == (True, True, True)
    assert list(catalog.registry.broken) == ["repeating"]


def test_a_file_of_a_library_that_cannot_be_read_is_listed_with_the_reason(install):
    folder = install("half", LIBRARY)
    for kind in ("strategies", "trees"):
        (folder / "files" / kind).mkdir(parents=True)
        (folder / "files" / kind / "bad.yaml").write_text("[")
    listed = CliRunner().invoke(app, ["list", "--json"])
    assert listed.exit_code == 0, listed.output
    tables = json.loads(listed.stdout)
    for kind in ("strategies", "trees"):
        row = next(row for row in tables[kind] if row["name"] == "bad")
        assert "not YAML" in row["what it is"]
