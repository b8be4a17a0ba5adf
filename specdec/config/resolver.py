"""The checks of a spec that need no weights: shape, names, fit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specdec.config.compatibility_report import Fit, declaration_fault, fit
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedPart, ResolvedSpec, with_parts
from specdec.config.short_forms import target_part
from specdec.config.strategy_spec import Reading, StrategySpec, read_spec
from specdec.errors import IncompatibleParts, PluginError, SpecdecError, SpecError, listed
from specdec.files.validation import validated
from specdec.files.yaml_document import KeyPath, Origin, Problem
from specdec.interfaces.compatibility import NamedDeclaration, too_many_drafts
from specdec.interfaces.consent import OPTION
from specdec.interfaces.declarations import Kind, TargetDeclaration
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import BuildTools, Target
from specdec.plugins.registry import BASES


def read(
    source: str | Path | Mapping[str, Any],
    catalog: Catalog,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Reading:
    """The spec of a name, a path or a mapping, not yet checked. Raises SpecError where there is no such file."""
    if not isinstance(source, str | Path | Mapping):
        raise SpecError(
            f"got a {type(source).__name__} object as a spec; expected a strategy's name, a .yaml file or a mapping"
        )
    found = source if isinstance(source, Mapping) else catalog.library.find_strategy(str(source))
    return read_spec(
        found,
        find_strategy=catalog.library.find_strategy,
        settings=settings,
        overrides=overrides,
        registered={kind.value: parts.keys() for kind, parts in catalog.registry.parts.items()},
    )


def check(reading: Reading, catalog: Catalog, *, target: Target | None = None) -> ResolvedSpec:
    """Shape, names and fit; no weights are read. `target` stands for the spec's own, already loaded.

    Raises SpecError or IncompatibleParts with everything that is wrong.
    """
    checker = _Checker(reading, catalog)
    parts = {kind: checker.choose(kind) for kind in Kind if not (kind is Kind.TARGET and target is not None)}
    chosen = {kind: part for kind, part in parts.items() if part is not None}
    drafters = checker.drafters(chosen[Kind.DRAFTER]) if Kind.DRAFTER in chosen else ()
    nested = checker.nested(chosen[Kind.DRAFTER]) if Kind.DRAFTER in chosen else {}
    for number, part in enumerate(drafters):
        nested |= {f"parts.{number}.{k}": model for k, model in checker.nested(part, at=("parts", number)).items()}
    if drafters:
        chosen[Kind.DRAFTER] = with_parts(chosen[Kind.DRAFTER], drafters)
    checker.try_tree(chosen)
    declared = {kind: NamedDeclaration(part.name, part.declares) for kind, part in chosen.items()}
    if target is not None:
        declared[Kind.TARGET] = NamedDeclaration(type(target).name, declaration_of(target))
    allow_lossy = reading.document.data.get("allow_lossy") is True
    result = fit(declared, catalog.registry, allow_lossy=allow_lossy)
    _raise_if_any(reading, [*reading.problems, *checker.problems], _with_draft_sizes(result, reading, declared))
    if reading.spec is None:
        raise SpecError(f"{reading.label}: cannot be read")
    return ResolvedSpec(reading.spec, chosen, nested, catalog.library, reading.folder, reading.label, drafters)


def _with_draft_sizes(result: Fit, reading: Reading, declared: Mapping[Kind, NamedDeclaration[Any]]) -> Fit:
    """The same, where the parts fit otherwise, with what the sampling of drafts leaves a rule to go through."""
    if reading.spec is None or result.broken or not {Kind.TREE, Kind.VERIFIER} <= declared.keys():
        return result
    many = too_many_drafts(declared[Kind.TREE], declared[Kind.VERIFIER], reading.spec.sampling.draft_truncation.top_k)
    return result if many is None else replace(result, broken=(many,))


def declaration_of(target: Target) -> TargetDeclaration:
    """What a loaded target declares by its facts."""
    facts = target.facts
    return TargetDeclaration(
        vocab_size=facts.vocab_size,
        num_layers=facts.num_layers,
        max_positions=facts.max_positions,
        no_trees_because=None if facts.trees else "it scores one token at a time",
        hidden_size=facts.hidden_size,
    )


class _Checker:
    """Looks up the parts of one spec and collects what is wrong with them."""

    def __init__(self, reading: Reading, catalog: Catalog) -> None:
        self._document = reading.document
        self._folder = reading.folder
        self._catalog = catalog
        self.problems: list[Problem] = []

    def _context(self, path: KeyPath) -> dict[str, Any]:
        """What the options of the part at `path` may ask: where paths start, and the files of trees."""

        def folders(option: str) -> tuple[Path, ...]:
            return tuple(dict.fromkeys((self._document.origin((*path, option)).folder, self._folder, Path())))

        return {"folders": folders, "find_tree": self._catalog.library.find_tree}

    def choose(self, kind: Kind) -> ResolvedPart | None:
        """The part of this kind; None if something keeps it from being known."""
        field = StrategySpec.model_fields[kind.value]
        raw = self._document.data.get(kind.value)
        if raw is None and not field.is_required():
            return self.part(kind, {"use": field.default.use}, (kind.value,))
        return self.part(kind, raw, (kind.value,)) if isinstance(raw, Mapping) and _is_part(raw) else None

    def part(self, kind: Kind, raw: Mapping[str, Any], path: KeyPath) -> ResolvedPart | None:
        try:
            cls = self._catalog.registry.find(kind, raw["use"])
        except SpecdecError as error:
            self.problems.append(self._document.problem((*path, "use"), str(error)))
            return None
        given = {k: v for k, v in raw.items() if k != "use"}
        guard = PartGuard(kind, cls, self._catalog.registry.parts[kind][raw["use"]].package)
        with guard:
            options, problems = validated(cls.Options, given, self._document, path, self._context(path))
        self.problems += problems
        if options is None:
            return None
        if OPTION in cls.Options.model_fields:
            options = options.model_copy(update={OPTION: self._catalog.trust_remote_code})
        try:
            with guard:
                declares = cls.declares(options)
        except PluginError:
            raise
        except SpecdecError as error:
            self.problems.append(self._document.problem(path, str(error)))
            return None
        if (fault := declaration_fault(kind, declares)) is not None:
            raise PluginError(f"{guard.label} {fault}")
        return ResolvedPart(kind, raw["use"], cls, options, declares)

    def drafters(self, drafter: ResolvedPart) -> tuple[ResolvedPart, ...]:
        """The further drafters that the drafter declares; without those that are faulty."""
        found = []
        for number, raw in enumerate(drafter.declares.drafters):
            path: KeyPath = (Kind.DRAFTER.value, "parts", number)
            if not _is_part(raw):
                at = (*path, *list(raw)[:1]) if isinstance(raw, Mapping) else path
                self.problems.append(self._document.problem(at, f"got {raw!r}, expected a drafter such as {{use: NAME}}"))
                continue
            part = self.part(Kind.DRAFTER, raw, path)
            if part is None:
                continue
            if part.declares.drafters or not part.declares.drafts:
                why = "asks others itself; list its parts here instead" if part.declares.drafters else "drafts nothing"
                self.problems.append(self._document.problem((*path, "use"), f"drafter '{part.name}' {why}"))
                continue
            found.append(part)
        return tuple(found)

    def nested(self, drafter: ResolvedPart, at: KeyPath = ()) -> dict[str, ResolvedPart]:
        """The further models that the drafter declares."""
        found = {}
        for option, raw in drafter.declares.targets:
            path: KeyPath = (Kind.DRAFTER.value, *at, option)
            spec = target_part(raw, self._catalog.registry.parts[Kind.TARGET]) if isinstance(raw, str) else raw
            if not _is_part(spec):
                self.problems.append(self._document.problem(path, f"got {raw!r}, expected a target such as {{use: NAME}}"))
                continue
            part = self.part(Kind.TARGET, spec, path)
            if part is not None:
                found[option] = part
                if part.declares.no_decoding_because is not None:
                    self.problems.append(self._document.problem(path, f"cannot draft: {part.declares.no_decoding_because}"))
        return found

    def try_tree(self, chosen: Mapping[Kind, ResolvedPart]) -> None:
        """Build the tree builder, which holds no weights: the files that it reads are read, and a broken plug-in is found."""
        if Kind.TREE not in chosen:
            return
        find_tree = partial(self._catalog.library.find_tree, folders=(self._folder,))
        try:
            built(chosen[Kind.TREE], BuildTools(find_tree=find_tree))
        except PluginError:
            raise
        except SpecdecError as error:
            self.problems.append(self._document.problem((Kind.TREE.value,), str(error)))


def built(part: ResolvedPart, tools: BuildTools) -> Any:
    """The part itself, which carries its declaration. Raises PluginError where its class fails, or returns something else."""
    guard = PartGuard(part.kind, part.cls)
    with guard:
        made = part.cls.build(part.options, tools)
    if not isinstance(made, BASES[part.kind]):
        raise PluginError(f"{guard.label} was built as {type(made).__name__}, not as a {BASES[part.kind].__name__}")
    if part.kind is not Kind.TARGET:
        made.declaration = _declared_when_loaded(part)
    return made


def _declared_when_loaded(part: ResolvedPart) -> Any:
    """What the part declares now that its files are within reach, where they were not when it was checked."""
    if part.kind is not Kind.DRAFTER or not part.declares.unread or part.declares.drafters:
        return part.declares
    return part.cls.declares(type(part.options).model_validate(part.options.model_dump()))


def _is_part(raw: Any) -> bool:
    return isinstance(raw, Mapping) and isinstance(raw.get("use"), str)


def _raise_if_any(reading: Reading, problems: Sequence[Problem], result: Fit) -> None:
    unique = sorted(dict.fromkeys(problems), key=lambda p: (p.origin.source, p.origin.line or 0))
    misfits = _misfit_lines(reading, result) if result.broken else []
    if unique:
        raise SpecError("\n".join([listed(unique), *misfits]))
    if misfits:
        raise IncompatibleParts("\n".join(misfits))


def _misfit_lines(reading: Reading, result: Fit) -> list[str]:
    lines = [f"{reading.label}: these parts do not fit together"]
    for mismatch in result.broken:
        origins = dict.fromkeys(reading.document.origin((field,)) for field in mismatch.fields)
        lines.append(f"  {_places(list(origins), reading.label)}  {mismatch.message}")
    for kind, names in result.fitting.items():
        lines.append(f"  {kind.plural} that fit: {', '.join(names) or 'none'}")
        if kind in result.with_drafters:
            parts, drafters = (", ".join(found) for found in result.with_drafters[kind])
            lines.append(f"  {kind.plural} that fit with another drafter ({drafters}): {parts}")
    return lines


def _places(origins: Sequence[Origin], label: str) -> str:
    """'lines 7, 8'; another file or an override is named in full."""
    here = sorted(o.line for o in origins if o.source == label and o.line is not None)
    others = [str(o) for o in origins if o.source != label]
    numbers = f"line{'s' if len(here) > 1 else ''} {', '.join(map(str, here))}" if here else ""
    return ", ".join([*([numbers] if numbers else []), *others]) or "given"
