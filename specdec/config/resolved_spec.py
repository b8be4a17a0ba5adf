"""The parts that a spec chooses, before they are built."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec.config.library import Library
from specdec.config.strategy_spec import StrategySpec
from specdec.interfaces.compatibility import PADDING
from specdec.interfaces.declarations import DrafterDeclaration, Kind
from specdec.interfaces.parts import PartOptions
from specdec.interfaces.results import united


@dataclass(frozen=True, slots=True)
class ResolvedPart:
    """A part that a spec names, with its options and what it declares."""

    kind: Kind
    name: str
    cls: type[Any]
    options: PartOptions
    declares: Any


@dataclass(frozen=True, slots=True)
class ResolvedSpec:
    """A spec that passed every check and can be built.

    nested: further models of the drafter, by option (`parts.0.model` for one of a part). drafters: those that it asks.
    """

    spec: StrategySpec
    parts: Mapping[Kind, ResolvedPart]
    nested: Mapping[str, ResolvedPart]
    library: Library
    folder: Path
    label: str
    drafters: tuple[ResolvedPart, ...] = ()

    def find_tree(self, name: str) -> Path:
        """The file of a tree that the spec names; paths start at the spec's folder."""
        return self.library.find_tree(name, (self.folder,))

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be checked without loading, and what of a tree is never drafted."""
        models = {"target": self.parts.get(Kind.TARGET), **{f"drafter.{k}": part for k, part in self.nested.items()}}
        unread = [key for key, part in models.items() if part is not None and part.declares.vocab_size is None]
        unread += ["drafter"] if self.parts[Kind.DRAFTER].declares.unread else []
        notes = [f"{key}: not checked: its configuration is out of reach until it is loaded" for key in unread]
        if unread and self.template is not None:
            notes.append(self.template)
        return (*notes, *self._vocabularies(), *self._levels())

    @property
    def template(self) -> str | None:
        """Of a template, that it is one, and how its models are set; None for a strategy that is ready."""
        if not (self.spec.description or "").startswith("template"):
            return None
        drafter = self.parts[Kind.DRAFTER]
        more = [f"drafter.{option}.model=DRAFT" for option in self.nested]
        more += ["drafter.head=HEAD"] if "head" in type(drafter.options).model_fields else []
        options = " ".join(["--target MODEL", *(f"--set {setting}" for setting in more)])
        return f"'{self.spec.name}' is a template for models of your own: set them in a copy, or by {options}"

    def _vocabularies(self) -> Iterator[str]:
        """Draft models whose vocabulary is plainly of another size than the target's."""
        target = self.parts.get(Kind.TARGET)
        wanted = None if target is None else target.declares.vocab_size
        for option, part in self.nested.items():
            given = part.declares.vocab_size
            if wanted is not None and given is not None and abs(wanted - given) >= PADDING:
                yield (
                    f"drafter.{option}: a vocabulary of {given} tokens, where the target has {wanted}: "
                    "it is refused at load unless both tokenizers give the same ids to the same texts"
                )

    def _levels(self) -> Iterator[str]:
        """Levels of the tree that are deeper than the drafter drafts."""
        drafter, tree = self.parts[Kind.DRAFTER], self.parts[Kind.TREE]
        drafted, wanted = drafter.declares.max_depth, tree.declares.max_depth
        if drafted is not None and wanted is not None and wanted > drafted:
            yield f"tree: '{tree.name}' has {wanted} levels; drafter '{drafter.name}' drafts {drafted}, and none below"

    def plain(self) -> dict[str, Any]:
        """The spec as plain data with every default spelled out; reading it again gives the same."""
        head = {k: getattr(self.spec, k) for k in ("name", "source", "description") if getattr(self.spec, k) is not None}
        parts = {kind.value: self._part(chosen) for kind, chosen in self.parts.items()}
        sampling = self.spec.sampling.model_dump(mode="json", exclude_none=True)
        draft = self.spec.sampling.draft_truncation.model_dump(mode="json", exclude_none=True)
        limit = {} if self.spec.max_tv is None else {"max_tv": self.spec.max_tv}
        return {**head, **parts, "sampling": {**sampling, "draft": draft}, "allow_lossy": self.spec.allow_lossy, **limit}

    def _part(self, chosen: ResolvedPart) -> dict[str, Any]:
        """A part with all options; files of the library go by their names."""
        names = {str(path): name for name, path in self.library.trees().items()}
        options = chosen.options.model_dump(mode="json", exclude_none=True)
        if chosen.kind is Kind.DRAFTER and self.drafters and chosen not in self.drafters:
            options["parts"] = [self._part(part) for part in self.drafters]
        return {"use": chosen.name, **{k: names.get(v, v) if isinstance(v, str) else v for k, v in options.items()}}


def with_parts(drafter: ResolvedPart, parts: Sequence[ResolvedPart]) -> ResolvedPart:
    """The drafter that also declares what the drafters need that it asks."""
    declares: DrafterDeclaration = drafter.declares
    together = replace(
        declares,
        features=united(declares.features, [part.declares.features for part in parts]),
        made_for=(*declares.made_for, *(sizes for part in parts for sizes in part.declares.made_for)),
        unread=declares.unread or any(part.declares.unread for part in parts),
        max_depth=_deepest([part.declares.max_depth for part in parts]) if parts else declares.max_depth,
    )
    return replace(drafter, declares=together)


def _deepest(depths: Sequence[int | None]) -> int | None:
    """How deep some of these parts draft; None: one of them has no limit."""
    known = [depth for depth in depths if depth is not None]
    return max(known) if len(known) == len(depths) else None
