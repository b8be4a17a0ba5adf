"""Parts gathered from specdec itself and from every installed plug-in, through the same hooks."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, Final

import pluggy

from specdec.errors import PluginError, SpecdecWarning
from specdec.files.paths import is_folder
from specdec.interfaces.declarations import Kind
from specdec.interfaces.results import StepRecord
from specdec.plugins import builtin, hookspecs
from specdec.plugins.registry import DISABLE, HOOKS, Registered, Registry, broken_rule, plugin_error


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
    hook, base = HOOKS[kind]
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


def _folder(package: str, named: Any) -> Path:
    if not isinstance(named, str | Path) or not is_folder(Path(named)):
        raise plugin_error(package, f": specdec_library names {named!r}, which is no folder")
    return Path(named)
