"""The registry: all parts, ours and those of installed plug-ins, by kind and name."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from specdec.errors import PluginError, UnknownPart, did_you_mean
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import Drafter, PartOptions, Target, TreeBuilder, Verifier
from specdec.interfaces.results import StepRecord

DISABLE: Final = "SPECDEC_DISABLE_PLUGINS"
"""Environment variable: 1 turns off all third-party plug-ins, a comma-separated list those packages."""


HOOKS: Final = MappingProxyType(
    {
        Kind.TARGET: ("specdec_targets", Target),
        Kind.DRAFTER: ("specdec_drafters", Drafter),
        Kind.TREE: ("specdec_tree_builders", TreeBuilder),
        Kind.VERIFIER: ("specdec_verifiers", Verifier),
    }
)


BASES: Final[Mapping[Kind, type[Any]]] = MappingProxyType({kind: base for kind, (_, base) in HOOKS.items()})


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
    if isinstance(parts, type) or not isinstance(parts, Iterable):
        raise PluginError(f"parts: got {parts!r}; expected a list of part classes, such as [MyVerifier]")
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


def plugin_error(package: str, broken: str) -> PluginError:
    """The error of a plug-in, with the way to turn it off."""
    return PluginError(f"plug-in '{package}'{broken}\n  {DISABLE}={package} turns it off")


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
