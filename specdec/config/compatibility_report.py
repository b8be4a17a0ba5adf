"""Whether the chosen parts fit together, and which others would."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import ValidationError

from specdec.interfaces.compatibility import Mismatch, NamedDeclaration, mismatches
from specdec.interfaces.declarations import (
    ALL_SHAPES,
    BuilderDeclaration,
    DrafterDeclaration,
    Gives,
    Guarantee,
    Kind,
    Shape,
    TargetDeclaration,
    VerifierDeclaration,
)
from specdec.interfaces.part_guard import interrupts
from specdec.interfaces.parts import PartOptions
from specdec.plugins.registry import Registry
from specdec.trees.draft_tree import Draw

DECLARATIONS: Final = MappingProxyType(
    {
        Kind.TARGET: TargetDeclaration,
        Kind.DRAFTER: DrafterDeclaration,
        Kind.TREE: BuilderDeclaration,
        Kind.VERIFIER: VerifierDeclaration,
    }
)

_WORDS: Final[Mapping[str, type[Enum]]] = MappingProxyType({"accepts": Draw, "shapes": Shape, "needs": Gives})
_WORD: Final[Mapping[str, type[Enum]]] = MappingProxyType(
    {"draw": Draw, "shape": Shape, "gives": Gives, "guarantee": Guarantee}
)

_EXAMPLES: Final[Mapping[str, Any]] = MappingProxyType({"widths": [2, 1], "model": "target", "head": "builtin"})
"""Values of options that parts cannot do without."""

TOY: Final = "tabular"
"""A part for proofs, which is never recommended."""

_STAND_INS: Final[Mapping[Kind, Any]] = MappingProxyType(
    {
        Kind.DRAFTER: DrafterDeclaration(Gives.DISTRIBUTIONS),
        Kind.TREE: BuilderDeclaration(Draw.DETERMINISTIC, Shape.CHAIN, frozenset(Gives)),
        Kind.VERIFIER: VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=False),
    }
)
"""Declarations that take the place of a part that is not known; rules that concern them are not reported."""


def declaration_fault(kind: Kind, declares: object) -> str | None:
    """What is wrong with what a part declares, in words; None if it can be compared."""
    if not isinstance(declares, DECLARATIONS[kind]):
        return f"declares {type(declares).__name__}, expected {DECLARATIONS[kind].__name__}"
    for field, words in _WORDS.items():
        values: Any = getattr(declares, field, frozenset())
        if not isinstance(values, frozenset | set) or not values <= set(words):
            return f"declares {field}={values!r}, expected a set of {words.__name__}"
    for field, word in _WORD.items():
        if hasattr(declares, field) and (value := getattr(declares, field)) not in set(word):
            return f"declares {field}={value!r}, expected a {word.__name__}"
    if isinstance(declares, DrafterDeclaration) and not _are_targets(declares.targets):
        return f"declares targets={declares.targets!r}, expected a tuple of (option, target)"
    return None


def _are_targets(targets: Any) -> bool:
    pairs = targets if isinstance(targets, tuple) else (None,)
    return all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)


@dataclass(frozen=True, slots=True)
class Fit:
    """The rules that are broken, and by kind the parts that would fit all the others."""

    broken: tuple[Mismatch, ...]
    fitting: Mapping[Kind, tuple[str, ...]]
    with_drafters: Mapping[Kind, tuple[tuple[str, ...], tuple[str, ...]]]
    """By kind of which none fits: those that would beside other drafters, and these."""


def fit(declared: Mapping[Kind, NamedDeclaration[Any]], registry: Registry, *, allow_lossy: bool) -> Fit:
    """Compare the declarations that are known. Parts that would fit are looked for only where a rule is broken."""
    broken = tuple(_broken(declared, allow_lossy=allow_lossy))
    involved = {Kind(field) for mismatch in broken for field in mismatch.fields}
    searched = [kind for kind in (Kind.VERIFIER, Kind.TREE, Kind.DRAFTER) if kind in involved and kind in declared]
    fitting: dict[Kind, tuple[str, ...]] = {
        kind: tuple(_fitting(kind, declared, registry, allow_lossy=allow_lossy)) for kind in searched
    }
    if any(fitting[kind] for kind in searched if kind is not Kind.DRAFTER):
        fitting.pop(Kind.DRAFTER, None)
    alone = [kind for kind, found in fitting.items() if not found and kind is not Kind.DRAFTER]
    pairs = {kind: _with_drafters(kind, declared, registry, allow_lossy=allow_lossy) for kind in alone}
    return Fit(broken, fitting, {kind: pair for kind, pair in pairs.items() if all(pair)})


def _with_drafters(
    kind: Kind, declared: Mapping[Kind, NamedDeclaration[Any]], registry: Registry, *, allow_lossy: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parts of this kind that fit where the drafter is another one, and the drafters that fit the first of them."""
    rest: dict[Kind, NamedDeclaration[Any]] = {other: named for other, named in declared.items() if other is not Kind.DRAFTER}
    candidates = list(_candidates(kind, rest, registry, allow_lossy=allow_lossy))
    if not candidates:
        return (), ()
    needs = candidates[0][1]
    drafters = tuple(_fitting(Kind.DRAFTER, {**rest, kind: needs}, registry, allow_lossy=allow_lossy))
    alike = [
        label
        for label, named in candidates
        if tuple(_fitting(Kind.DRAFTER, {**rest, kind: named}, registry, allow_lossy=allow_lossy)) == drafters
    ]
    return tuple(alike), drafters


def _broken(declared: Mapping[Kind, NamedDeclaration[Any]], *, allow_lossy: bool) -> list[Mismatch]:
    parts = {kind: declared.get(kind, NamedDeclaration("?", stand_in)) for kind, stand_in in _STAND_INS.items()}
    found = mismatches(
        drafter=parts[Kind.DRAFTER],
        builder=parts[Kind.TREE],
        verifier=parts[Kind.VERIFIER],
        target=declared.get(Kind.TARGET),
        allow_lossy=allow_lossy,
    )
    return [m for m in found if all(Kind(field) in declared for field in m.fields)]


def _fitting(
    kind: Kind, declared: Mapping[Kind, NamedDeclaration[Any]], registry: Registry, *, allow_lossy: bool
) -> Iterator[str]:
    """Names of parts of this kind that break no rule beside the others, with the one option that it takes, if any."""
    return (label for label, _ in _candidates(kind, declared, registry, allow_lossy=allow_lossy))


def _candidates(
    kind: Kind, declared: Mapping[Kind, NamedDeclaration[Any]], registry: Registry, *, allow_lossy: bool
) -> Iterator[tuple[str, NamedDeclaration[Any]]]:
    """Parts that `_fitting` names, with what they declare.

    A part that fails to answer is not recommended; it is reported when it is used.
    """
    for name, registered in registry.parts[kind].items():
        if name == TOY:
            continue
        for label, options in _variants(name, registered.cls.Options):
            try:
                candidate = NamedDeclaration(name, registered.cls.declares(options))
                fits = not _broken({**declared, kind: candidate}, allow_lossy=allow_lossy)
            except BaseException as error:
                if interrupts(error):
                    raise
                continue
            if fits:
                yield label, candidate
                break


def default_declaration(cls: type[Any]) -> Any:
    """What a part declares with its default options (what has no default gets an example); None where that cannot be told."""
    for _, options in _variants(cls.name, cls.Options):
        try:
            return cls.declares(options)
        except (Exception, SystemExit):
            return None
    return None


def _variants(name: str, options_class: type[PartOptions]) -> Iterator[tuple[str, PartOptions]]:
    """The default options, then each with one choice changed; what has no default gets an example."""
    examples = {option: value for option, value in _EXAMPLES.items() if option in options_class.model_fields}
    settings: list[dict[str, Any]] = [{}]
    for option, field in options_class.model_fields.items():
        settings += [{option: choice} for choice in _choices(field.annotation) if choice != field.default]
    for setting in settings:
        try:
            options = options_class.model_validate({**examples, **setting})
        except ValidationError:
            continue
        shown = ", ".join(f"{option}: {_word(choice)}" for option, choice in setting.items())
        yield (f"{name} {{{shown}}}" if shown else name), options


def _choices(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return (False, True)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(annotation)
    return ()


def _word(choice: Any) -> str:
    return str(choice).lower() if isinstance(choice, bool) else str(choice.value if isinstance(choice, Enum) else choice)
