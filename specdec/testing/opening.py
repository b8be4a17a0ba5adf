"""A part class as plug-ins hand it over: its declaration, its options, and a decoder around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from specdec.config.compatibility_report import declaration_fault
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import PartOptions
from specdec.plugins.registry import BASES, broken_rule
from specdec.testing.report import Checked, CheckFailed


@dataclass(frozen=True, slots=True)
class Opened:
    """A sound class with its options, and what it declares of itself."""

    cls: type[Any]
    options: PartOptions
    declares: Any


def opened(kind: Kind, cls: type[Any], options: Mapping[str, Any] | PartOptions | None, report: Checked) -> Opened:
    """The part, if its class can be registered, its options read, and its declaration compared. Raises CheckFailed."""
    with report.rule("it can be registered"):
        if (rule := broken_rule(cls, BASES[kind])) is not None:
            raise CheckFailed(f"the class {rule}")
    with report.rule("its options can be read"):
        chosen = _options(cls.Options, options)
    with report.rule("its declaration can be compared"):
        declares = cls.declares(chosen)
        if (fault := declaration_fault(kind, declares)) is not None:
            raise CheckFailed(f"it {fault}")
    return Opened(cls, chosen, declares)


def _options(cls: type[PartOptions], given: Mapping[str, Any] | PartOptions | None) -> PartOptions:
    if isinstance(given, PartOptions):
        if not isinstance(given, cls):
            raise CheckFailed(f"got options of type {type(given).__name__}; it takes {cls.__name__}")
        return given
    if given is not None and not isinstance(given, Mapping):
        raise CheckFailed(f"got {given!r}; expected a mapping of options, or an instance of {cls.__name__}")
    try:
        return cls.model_validate(dict(given or {}))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
        raise CheckFailed(f"{faults} (pass them as options={{...}})") from error


def part_name(kind: Kind, cls: Any) -> str:
    """How messages call it."""
    return f"{kind} '{getattr(cls, 'name', getattr(cls, '__name__', cls))}'"
