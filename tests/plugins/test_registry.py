"""The registry: built-ins by the same hooks, broken plug-ins named, nothing added after loading."""

import sys
from types import ModuleType

import pluggy
import pytest

from specdec.compose import build
from specdec.config.library import Catalog, library
from specdec.config.resolver import check, read
from specdec.drafters.none import NoDrafter
from specdec.errors import PluginError, SpecdecWarning, UnknownPart
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.plugins import builtin as builtin_plugin
from specdec.plugins import hookspecs
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.loading import load_registry, registry_of
from specdec.plugins.registry import Registry
from specdec.verifiers.match import Match


def registry_with(**hooks) -> Registry:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin_plugin, "specdec")
    plugin = ModuleType("stranger")
    for name, function in hooks.items():
        setattr(plugin, name, hookimpl(function))
    manager.register(plugin)
    return registry_of(manager)


def lone(**attributes) -> type[Verifier]:
    """A sound verifier with some attributes changed."""

    def verify(self, tree, p, rng):
        raise NotImplementedError

    declared = {
        "name": "lone",
        "Options": PartOptions,
        "declares": Match.__dict__["declares"],
        "build": Match.__dict__["build"],
    }
    return type("Lone", (Verifier,), {**declared, "verify": verify, **attributes})


def test_the_built_in_parts_are_registered():
    registry = load_registry("1")
    assert set(registry.parts[Kind.DRAFTER]) >= {"none", "ngram", "model", "tabular"}
    assert set(registry.parts[Kind.TREE]) >= {"chain", "fixed", "dynamic", "sampled"}
    assert set(registry.parts[Kind.VERIFIER]) >= {"match", "point_mass", "chain", "multi_round"}
    assert set(registry.parts[Kind.TARGET]) >= {"builtin", "huggingface", "tabular"}


def test_every_part_says_what_it_is_and_describes_every_option():
    for kind, parts in load_registry("1").parts.items():
        for name, registered in parts.items():
            assert registered.cls.__doc__, (kind, name)
            assert all(f.description for f in registered.cls.Options.model_fields.values()), (kind, name)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownPart, match="no verifier is called 'mtach'; did you mean 'match'"):
        load_registry("1").find(Kind.VERIFIER, "mtach")


def test_the_registry_is_frozen():
    registry = load_registry("1")
    with pytest.raises(TypeError):
        registry.parts[Kind.DRAFTER]["mine"] = registry.parts[Kind.DRAFTER]["none"]
    with pytest.raises(AttributeError):
        registry.parts = {}


def test_a_plugin_adds_a_part_under_its_package():
    registry = registry_with(specdec_verifiers=lambda: [lone()])
    assert registry.parts[Kind.VERIFIER]["lone"].package == "stranger"


def test_a_name_taken_twice_is_refused_and_both_packages_are_named():
    with pytest.raises(PluginError, match="both 'specdec' and 'stranger' register a drafter called 'none'"):
        registry_with(specdec_drafters=lambda: [NoDrafter])


class Useful(PartOptions):
    use: int = 0


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (int, "is not a subclass of specdec.interfaces.parts.Verifier"),
        ("match", "is not a subclass"),
        (NoDrafter, "is not a subclass"),
        (lone(name=""), "has no name"),
        (lone(name=3), "has no name"),
        (lone(Options=dict), "has no Options"),
        (lone(Options=Useful), "has an option called 'use'"),
        (type("Half", (Verifier,), {"name": "half", "Options": PartOptions}), "leaves abstract: build, declares, verify"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused_with_package_and_rule(cls, rule):
    with pytest.raises(PluginError, match=f"plug-in 'stranger': verifier .*{rule}"):
        registry_with(specdec_verifiers=lambda: [cls])


def test_a_hook_that_returns_no_list_is_refused():
    with pytest.raises(PluginError, match="specdec_verifiers returned ABCMeta, expected a list"):
        registry_with(specdec_verifiers=lambda: Match)


def test_a_hook_that_raises_names_its_package_and_how_to_turn_it_off():
    def broken():
        raise ZeroDivisionError("oops")

    with pytest.raises(PluginError, match=r"'stranger' fails in specdec_drafters: ZeroDivisionError: oops\n.*=stranger"):
        registry_with(specdec_drafters=broken)


def test_a_hook_that_does_not_exist_is_refused():
    with pytest.raises(PluginError, match="stranger"):
        registry_with(specdec_draughters=lambda: [])


def test_a_library_folder_must_exist(tmp_path):
    assert registry_with(specdec_library=lambda: [tmp_path]).libraries == {tmp_path: "stranger"}
    with pytest.raises(PluginError, match="which is no folder"):
        registry_with(specdec_library=lambda: [tmp_path / "gone"])


def test_steps_are_observed_only_if_somebody_listens():
    seen = []
    assert load_registry("1").step_observer() is None
    observer = registry_with(specdec_step=lambda record: seen.append(record)).step_observer()
    observer("a record")
    assert seen == ["a record"]


def test_an_observer_that_fails_is_named():
    def broken(record):
        raise ZeroDivisionError("oops")

    with pytest.raises(PluginError, match="plug-in 'stranger' fails in specdec_step: ZeroDivisionError"):
        registry_with(specdec_step=broken).step_observer()("a record")


def test_what_a_plugin_prints_goes_to_stderr(capsys):
    def chatty(record):
        sys.stdout.write("step ")

    def talks():
        sys.stdout.write("loading ")
        return []

    registry_with(specdec_step=chatty, specdec_drafters=talks).step_observer()("a record")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.split() == ["loading", "step"]


def test_an_observer_sees_every_step_of_a_decoder():
    seen = []
    catalog = Catalog(registry_with(specdec_step=lambda record: seen.append(record)), library())
    table = {"use": "tabular", "vocab": 3, "random": {}}
    decoder = build(check(read("plain", catalog, overrides={"target": table}), catalog), catalog)
    answer = decoder.generate([[0, 1]], max_new_tokens=5)[0]
    assert tuple(seen) == answer.records


def installed(path, name: str, module: str, code: str) -> None:
    """A package on disk, as an installer leaves it."""
    (path / f"{module}.py").write_text(code)
    info = path / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[specdec]\n{name} = {module}\n")


def test_an_installed_plugin_that_cannot_be_imported_is_named_and_can_be_turned_off(tmp_path, monkeypatch):
    installed(tmp_path, "specdec-broken", "specdec_broken_module", "raise ImportError('no such luck')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(SpecdecWarning, match="plug-in 'specdec-broken' cannot be imported: ImportError: no such luck"):
        assert load_registry("").parts
    assert load_registry("specdec-broken").parts
    assert load_registry("1").parts
    assert "specdec_broken_module" not in sys.modules


def test_an_installed_plugin_that_leaves_on_import_is_named(tmp_path, monkeypatch):
    installed(tmp_path, "specdec-leaver", "specdec_leaver_module", "import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(SpecdecWarning, match="plug-in 'specdec-leaver' cannot be imported: SystemExit: 0"):
        assert load_registry("").parts
