"""The registry: all parts, ours and those of installed plug-ins, by kind and name."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, Final

import pluggy

from specdec.errors import PluginError, UnknownPart, did_you_mean
from specdec.interfaces.parts import Drafter, PartOptions, Target, TreeBuilder, Verifier
from specdec.interfaces.results import StepRecord
from specdec.plugins import builtin, hookspecs

DISABLE: Final = "SPECDEC_DISABLE_PLUGINS"
"""Environment variable: 1 turns off all third-party plug-ins, a comma-separated list those packages."""


class Kind(StrEnum):
    """The four kinds of part, by their key in a spec."""

    TARGET = "target"
    DRAFTER = "drafter"
    TREE = "tree"
    VERIFIER = "verifier"

    @property
    def plural(self) -> str:
        """As `specdec list` calls them."""
        return {"target": "targets", "drafter": "drafters", "tree": "builders", "verifier": "verifiers"}[self]


_HOOKS: Final = MappingProxyType(
    {
        Kind.TARGET: ("specdec_targets", Target),
        Kind.DRAFTER: ("specdec_drafters", Drafter),
        Kind.TREE: ("specdec_tree_builders", TreeBuilder),
        Kind.VERIFIER: ("specdec_verifiers", Verifier),
    }
)


BASES: Final[Mapping[Kind, type[Any]]] = MappingProxyType({kind: base for kind, (_, base) in _HOOKS.items()})


@dataclass(frozen=True, slots=True)
class Registered:
    """A part class and the package that brought it."""

    cls: type[Any]
    package: str


@dataclass(frozen=True, slots=True)
class Registry:
    """All parts by kind and name; nothing can be added after loading. libraries: folders of strategies and trees."""

    parts: Mapping[Kind, Mapping[str, Registered]]
    libraries: tuple[Path, ...]
    observer: Callable[[StepRecord], None] | None

    def find(self, kind: Kind, name: str) -> type[Any]:
        """The part class. Raises UnknownPart with what the user may have meant."""
        if name not in self.parts[kind]:
            known = self.parts[kind]
            raise UnknownPart(f"no {kind} is called '{name}'{did_you_mean(name, known, listing=f'registered {kind.plural}')}")
        return self.parts[kind][name].cls

    def step_observer(self) -> Callable[[StepRecord], None] | None:
        """What the decoder is to call after every step; None if no plug-in listens."""
        return self.observer


def load_registry(disabled: str | None = None) -> Registry:
    """Our parts and those of every installed plug-in.

    disabled: the value of SPECDEC_DISABLE_PLUGINS, read from the environment by default.
    Raises PluginError naming the package of a plug-in that cannot be imported or breaks its contract.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin, "specdec")
    for point in _enabled(os.environ.get(DISABLE, "") if disabled is None else disabled):
        package = _package(point)
        plugin = _guarded(package, "cannot be imported", point.load)
        _guarded(package, "cannot be registered", partial(manager.register, plugin, package))
    return registry_of(manager)


def registry_of(manager: pluggy.PluginManager) -> Registry:
    """The registry of the plug-ins that `manager` holds. Raises PluginError."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plug-in '{manager.get_name(error.plugin)}': {error}") from error
    parts = {kind: _collect(manager, kind) for kind in Kind}
    libraries = [Path(folder) for package, folder in _answers(manager, "specdec_library") if _is_folder(package, folder)]
    return Registry(MappingProxyType(parts), tuple(libraries), _observer(manager))


def _observer(manager: pluggy.PluginManager) -> Callable[[StepRecord], None] | None:
    hook = manager.hook.specdec_step
    packages = ", ".join(implementation.plugin_name for implementation in hook.get_hookimpls())

    def observe(record: StepRecord) -> None:
        _guarded(packages, "fails in specdec_step", partial(hook, record=record))

    return observe if packages else None


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.name


def _enabled(disabled: str) -> list[EntryPoint]:
    names = {n.strip() for n in disabled.split(",") if n.strip()}
    if names & {"1", "true", "all"}:
        return []
    found = {(_package(p), p.name, p.value): p for p in entry_points(group=hookspecs.PROJECT)}
    return [p for p in found.values() if not names & {_package(p), p.name}]


_ONE_THREAD: Final = RLock()
"""Held while stdout is another one: of two threads that redirect it, the second would put back what the first had put there."""


def _guarded(package: str, what: str, action: Callable[[], Any]) -> Any:
    """What it prints goes to stderr: stdout carries the answers of commands."""
    try:
        with _ONE_THREAD, redirect_stdout(sys.stderr):
            return action()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(f"plug-in '{package}' {what}: {reason}\n  {DISABLE}={package} turns it off") from error


def _answers(manager: pluggy.PluginManager, hook: str) -> Iterable[tuple[str, Any]]:
    """(package, item) for every item of every plug-in's list, in the order of registration."""
    plugins = [p for _, p in manager.list_name_plugin() if p is not None]
    for plugin in plugins:
        package = manager.get_name(plugin) or "?"
        caller = manager.subset_hook_caller(hook, [p for p in plugins if p is not plugin])
        for answer in _guarded(package, f"fails in {hook}", caller):
            if not isinstance(answer, list | tuple):
                raise PluginError(f"plug-in '{package}': {hook} returned {type(answer).__name__}, expected a list")
            yield from ((package, item) for item in answer)


def _collect(manager: pluggy.PluginManager, kind: Kind) -> Mapping[str, Registered]:
    hook, base = _HOOKS[kind]
    parts: dict[str, Registered] = {}
    for package, cls in _answers(manager, hook):
        broken = broken_rule(cls, base)
        if broken is not None:
            shown = cls.__qualname__ if isinstance(cls, type) else repr(cls)
            raise PluginError(f"plug-in '{package}': {kind} {shown} {broken}")
        if cls.name in parts:
            raise PluginError(f"both '{parts[cls.name].package}' and '{package}' register a {kind} called '{cls.name}'")
        parts[cls.name] = Registered(cls, package)
    return MappingProxyType(parts)


def broken_rule(cls: Any, base: type[Any]) -> str | None:
    """The rule that a part class breaks, in words; None if it is sound."""
    if not (isinstance(cls, type) and issubclass(cls, base)):
        return f"is not a subclass of specdec.interfaces.parts.{base.__name__}"
    if inspect.isabstract(cls):
        return f"leaves abstract: {', '.join(sorted(getattr(cls, '__abstractmethods__', ())))}"
    name = cls.__dict__.get("name")
    if not (isinstance(name, str) and name):
        return 'has no name: expected `name: ClassVar = "..."`'
    options = cls.__dict__.get("Options")
    if not (isinstance(options, type) and issubclass(options, PartOptions)):
        return "has no Options: expected a subclass of specdec.interfaces.parts.PartOptions"
    if "use" in options.model_fields:
        return "has an option called 'use', which names the part itself"
    return None


def _is_folder(package: str, folder: Any) -> bool:
    if not isinstance(folder, str | Path) or not Path(folder).is_dir():
        raise PluginError(f"plug-in '{package}': specdec_library names {folder!r}, which is no folder")
    return True
