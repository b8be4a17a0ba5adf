"""What a strategy file says, and how one is read: every mistake at once, each with its file and line."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from specdec.config.overrides import at_key, layered, override_documents, wholes_first
from specdec.config.short_forms import other_file, spelled_out
from specdec.errors import SpecdecError, SpecError
from specdec.files.paths import expanded, resolved
from specdec.files.validation import validated
from specdec.files.yaml_document import Document, Origin, Problem, from_mapping, read_file
from specdec.sampling.params import SamplingParams

MAX_SHOWN = 80
"""Characters of an override that errors show."""


class PartSpec(BaseModel):
    """A part by name, and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: Annotated[str, Field(min_length=1, description="the part's name")]

    @property
    def options(self) -> dict[str, Any]:
        """All keys but `use`."""
        return dict(self.model_extra or {})


class StrategySpec(BaseModel):
    """One composed decoder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, description="what outputs call it; unset: the file's name")]
    source: Annotated[str | None, Field(description="the paper or idea that it follows")] = None
    description: Annotated[str | None, Field(description="one line for `specdec list`")] = None
    target: Annotated[PartSpec, Field(description="the model whose distribution is reproduced")] = PartSpec(use="builtin")
    drafter: Annotated[PartSpec, Field(description="what proposes tokens")]
    tree: Annotated[PartSpec, Field(description="the draft's shape and how its tokens are picked")] = PartSpec(use="chain")
    verifier: Annotated[PartSpec, Field(description="the rule that accepts tokens")] = PartSpec(use="match")
    sampling: Annotated[SamplingParams, Field(description="how logits become probabilities")] = SamplingParams()
    allow_lossy: Annotated[bool, Field(description="permit a verifier whose output is not the target's distribution")] = False
    max_tv: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="run only with a certificate of `specdec verify`: a token's total variation is at most this",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A spec as far as it could be read. spec: None if it cannot be made sense of; folder: where relative paths start."""

    spec: StrategySpec | None
    document: Document
    problems: tuple[Problem, ...]
    folder: Path

    @property
    def label(self) -> str:
        """What errors call the spec: its file, mostly."""
        return self.document.origins[()].source


def read_spec(
    source: Path | Mapping[str, Any],
    *,
    find_strategy: Callable[[str], Path],
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    registered: Mapping[str, Collection[str]] | None = None,
) -> Reading:
    """The spec of a file or a mapping, `extends` followed, with overrides laid over.

    registered: names of parts by their key in a spec; a target by another name is a model's path or hub id.
    settings: texts `a.b=value`. overrides: {dotted key: value}. Whole parts are laid over before keys inside them, whatever
    their order, so that no key is lost; of two values for one key the later holds, and settings come after overrides.
    Raises SpecError only where there is nothing to check at all: no such file, or no YAML.
    """
    if isinstance(source, Path):
        document, folder, default_name = read_file(source), source.parent, source.stem
    else:
        document, folder, default_name = from_mapping(source, "the given mapping"), Path(), "unnamed"
    top, names = document.origins[()], registered or {}
    if (meaning := other_file(document.data)) is not None:
        raise SpecError(f"{top.source}: is {meaning}; a strategy names a drafter")
    seen = (resolved(source),) if isinstance(source, Path) else ()
    merged = _extended(document, folder, find_strategy, names.get("target", ()), seen)
    merged = replace(merged, data={**_default_parts(), **merged.data})
    given = [at_key(k.split("."), _plain(v), Origin(_argument(k, v))) for k, v in (overrides or {}).items()]
    layers, problems = override_documents(settings)
    for layer in wholes_first([spelled_out(layer, names.get("target", ())) for layer in (*given, *layers)]):
        merged = replace(layered(merged, layer), data=_named(layered(merged, layer).data, merged.data))
    data = {"name": default_name, **{k: v for k, v in merged.data.items() if k != "extends"}}
    merged = Document(data, {**merged.origins, (): top}, merged.problems)
    spec, shape_problems = validated(StrategySpec, data, merged, ())
    shape_problems = _explained(shape_problems, merged, names)
    return Reading(spec, merged, (*merged.problems, *problems, *shape_problems), folder)


def _argument(key: str, value: Any) -> str:
    """What errors call an override: a model by its folder or hub id, and no more than can be seen at once."""
    named = isinstance(value, Mapping) and value.keys() == {"use", "model"} and value["use"] == "huggingface"
    words = f"argument {key}={value['model'] if named else value!r}"
    return words if len(words) <= MAX_SHOWN else f"{words[:MAX_SHOWN]} ..."


def _explained(found: list[Problem], document: Document, registered: Mapping[str, Collection[str]]) -> list[Problem]:
    """Problems of the shape: of a part that is missing with what would fit, none where the file itself could not be read."""
    if any(problem.key in ("", "extends") for problem in document.problems):
        return [problem for problem in found if not problem.message.startswith("is required")]
    explained = []
    for problem in found:
        if problem.message.startswith("is required") and problem.key in registered:
            names = ", ".join(sorted(registered[problem.key]))
            message = f"is required, such as '{problem.key}: ngram'; registered {problem.key}s: {names}"
            problem = replace(problem, message=message)
        explained.append(problem)
    return explained


def _default_parts() -> dict[str, Any]:
    """The parts that a spec may leave out, so that an override of one of their options has something to override."""
    fields = StrategySpec.model_fields.items()
    return {name: {"use": field.default.use} for name, field in fields if isinstance(field.default, PartSpec)}


def _named(data: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """An override keeps the name of what it overrides."""
    return {**{k: before[k] for k in ("name", "description") if k in before}, **data}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return value


MAX_EXTENDED = 32
"""Specs that may extend each other in a chain."""


def _extended(
    document: Document, folder: Path, find_strategy: Callable[[str], Path], targets: Collection[str], seen: tuple[Path, ...]
) -> Document:
    """`document` over the specs that it extends, nearest first, with short forms spelled out.

    targets: names of registered ones. A fault of the chain is added to the problems.
    """
    document = spelled_out(document, targets)
    parent = document.data.get("extends")
    if parent is None:
        return document
    if not isinstance(parent, str):
        return _with_problem(document, f"got {parent!r}, expected the name of a strategy or a path to a .yaml file")
    try:
        path = folder / expanded(parent) if parent.endswith((".yaml", ".yml")) else find_strategy(parent)
        if len(seen) > MAX_EXTENDED:
            return _with_problem(document, f"a chain of more than {MAX_EXTENDED} specs that extend each other")
        if resolved(path) in seen:
            chain = " -> ".join(p.stem for p in (*seen, path))
            return _with_problem(document, f"goes round in a circle: {chain}")
        base = _extended(read_file(path), path.parent, find_strategy, targets, (*seen, resolved(path)))
    except SpecdecError as error:
        return _with_problem(document, str(error))
    return layered(base, document)


def _with_problem(document: Document, message: str) -> Document:
    return replace(document, problems=(*document.problems, document.problem(("extends",), message)))
