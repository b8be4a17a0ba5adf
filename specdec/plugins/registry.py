"""The registry: all parts, ours and those of installed plug-ins, by kind and name."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, Final

import pluggy

from specdec.errors import PluginError, SpecdecWarning, UnknownPart, did_you_mean
from specdec.files.paths import is_folder
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import Drafter, PartOptions, Target, TreeBuilder, Verifier
from specdec.interfaces.results import StepRecord
from specdec.plugins import builtin, hookspecs

DISABLE: Final = "SPECDEC_DISABLE_PLUGINS"
"""Environment variable: 1 turns off all third-party plug-ins, a comma-separated list those packages."""


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
    """All parts by kind and name; nothing can be added after loading.

    libraries: folders of strategies and trees, and the package that brought each. broken: packages that are left out, and why.
    """

    parts: Mapping[Kind, Mapping[str, Registered]]
    libraries: Mapping[Path, str]
    observer: Callable[[StepRecord], None] | None
    broken: Mapping[str, str] = field(default_factory=dict)

    def find(self, kind: Kind, name: str) -> type[Any]:
        """The part class. Raises UnknownPart with what the user may have meant."""
        if name not in self.parts[kind]:
            known = self.parts[kind]
            raise UnknownPart(f"no {kind} is called '{name}'{did_you_mean(name, known, listing=f'registered {kind.plural}')}")
        return self.parts[kind][name].cls

    def step_observer(self) -> Callable[[StepRecord], None] | None:
        """What the decoder is to call after every step; None if no plug-in listens."""
        return self.observer


def extended(registry: Registry, parts: Iterable[type[Any]]) -> Registry:
    """The registry with further part classes, such as those of a notebook; the one given is left as it is.

    Raises PluginError for a class that is no part, breaks a rule of parts, or takes a name that is taken.
    """
    every = {kind: dict(known) for kind, known in registry.parts.items()}
    for cls in parts:
        shown = cls.__qualname__ if isinstance(cls, type) else repr(cls)
        kind = next((kind for kind, base in BASES.items() if isinstance(cls, type) and issubclass(cls, base)), None)
        if kind is None:
            raise PluginError(f"parts: {shown} is no Target, Drafter, TreeBuilder or Verifier; expected a list of such classes")
        if (broken := broken_rule(cls, BASES[kind])) is not None:
            raise PluginError(f"parts: {kind} {shown} {broken}")
        if cls.name in every[kind]:
            owner = every[kind][cls.name].package
            raise PluginError(f"parts: '{owner}' has a {kind} called '{cls.name}' already; give {shown} another name")
        every[kind][cls.name] = Registered(cls, "parts")
    return replace(registry, parts=MappingProxyType({kind: MappingProxyType(known) for kind, known in every.items()}))


def load_registry(disabled: str | None = None) -> Registry:
    """Our parts and those of every installed plug-in.

    A plug-in that cannot be imported, breaks its contract or takes a name that is taken is left out with a warning.

    Args:
        disabled: the value of SPECDEC_DISABLE_PLUGINS, read from the environment by default.
    """
    manager, broken = _manager({}), {}
    plugins: dict[str, Any] = {}
    for point in _enabled(os.environ.get(DISABLE, "") if disabled is None else disabled):
        package = _package(point)
        try:
            more = {**plugins, package: _guarded(package, "cannot be imported", point.load)}
            candidate = _guarded(package, "cannot be registered", partial(_manager, more))
            _guarded(package, "cannot be used", partial(registry_of, candidate))
        except PluginError as error:
            broken[package] = str(error)
            warnings.warn(f"left out: {error}", SpecdecWarning, stacklevel=2)
        else:
            manager, plugins = candidate, more
    return replace(registry_of(manager), broken=MappingProxyType(broken))


def _manager(plugins: Mapping[str, Any]) -> pluggy.PluginManager:
    """Our parts and these plug-ins, by package."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin, "specdec")
    for package, plugin in plugins.items():
        manager.register(plugin, package)
    return manager


def registry_of(manager: pluggy.PluginManager) -> Registry:
    """The registry of the plug-ins that `manager` holds. Raises PluginError."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise plugin_error(manager.get_name(error.plugin) or "?", f": {error}") from error
    parts = {kind: _collect(manager, kind) for kind in Kind}
    libraries = {_folder(package, named): package for package, named in _answers(manager, "specdec_library")}
    return Registry(MappingProxyType(parts), MappingProxyType(libraries), _observer(manager))


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
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # Whatever ends an import or a call there: sys.exit, and what test runners raise, are no Exceptions.
        raise plugin_error(package, f" {what}: {type(error).__name__}: {error}") from error


def plugin_error(package: str, broken: str) -> PluginError:
    """The error of a plug-in, with the way to turn it off."""
    return PluginError(f"plug-in '{package}'{broken}\n  {DISABLE}={package} turns it off")


def _answers(manager: pluggy.PluginManager, hook: str) -> Iterable[tuple[str, Any]]:
    """(package, item) for every item of every plug-in's list, in the order of registration."""
    plugins = [p for _, p in manager.list_name_plugin() if p is not None]
    for plugin in plugins:
        package = manager.get_name(plugin) or "?"
        caller = manager.subset_hook_caller(hook, [p for p in plugins if p is not plugin])
        for answer in _guarded(package, f"fails in {hook}", caller):
            if not isinstance(answer, list | tuple):
                raise plugin_error(package, f": {hook} returned {type(answer).__name__}, expected a list")
            yield from ((package, item) for item in answer)


def _collect(manager: pluggy.PluginManager, kind: Kind) -> Mapping[str, Registered]:
    hook, base = _HOOKS[kind]
    parts: dict[str, Registered] = {}
    for package, cls in _answers(manager, hook):
        broken = broken_rule(cls, base)
        if broken is not None:
            shown = cls.__qualname__ if isinstance(cls, type) else repr(cls)
            raise plugin_error(package, f": {kind} {shown} {broken}")
        if cls.name in parts:
            both = f"both '{parts[cls.name].package}' and '{package}' register a {kind} called '{cls.name}'"
            raise plugin_error(package, f": {both}")
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
    options = getattr(cls, "Options", None)
    if not (isinstance(options, type) and issubclass(options, PartOptions)):
        return "has no Options: expected a subclass of specdec.interfaces.parts.PartOptions"
    if "use" in options.model_fields:
        return "has an option called 'use', which names the part itself"
    return None


def _folder(package: str, named: Any) -> Path:
    if not isinstance(named, str | Path) or not is_folder(Path(named)):
        raise plugin_error(package, f": specdec_library names {named!r}, which is no folder")
    return Path(named)
