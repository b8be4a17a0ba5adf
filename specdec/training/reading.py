"""A training spec from YAML: every mistake at once, each with its line."""

from pathlib import Path
from typing import Any, TypeVar

from specdec.config.overrides import layered, override_documents
from specdec.errors import SpecError, listed
from specdec.files.paths import expanded, is_folder
from specdec.files.validation import validated
from specdec.files.yaml_document import read_file
from specdec.interfaces.consent import OPTION, consented
from specdec.training.draft_model_spec import DraftModelSpec
from specdec.training.judge import JudgeSpec
from specdec.training.spec import TrainingSpec


def read_training_spec(
    path: Path, settings: tuple[str, ...] = (), *, trust_remote_code: bool | None = None
) -> TrainingSpec | JudgeSpec | DraftModelSpec:
    """The spec of a file, with overrides `a.b=value`. Paths in it are relative to the file. Raises SpecError.

    `head: {kind: judge}` makes it one of a judge, `head: {kind: model}` of a draft model. trust_remote_code: consent to the
    target's own code; None: what SPECDEC_TRUST_REMOTE_CODE says. The file cannot give it.
    """
    document = read_file(path)
    layers, problems = override_documents(settings)
    name = {key: value for key, value in document.data.items() if key == "name"}
    for layer in layers:
        document = layered(document, layer)
    head = document.data.get("head")
    named = str(head.get("kind")) if isinstance(head, dict) else ""
    kind: type[TrainingSpec | JudgeSpec | DraftModelSpec] = OTHERS.get(named, TrainingSpec)
    spec, faults = validated(kind, {**name, **document.data}, document, ())
    mistakes = [*document.problems, *problems, *faults]
    if mistakes or spec is None:
        raise SpecError(listed(mistakes))
    target = spec.target.model_copy(update={OPTION: consented(trust_remote_code)})
    made = spec.model_copy(update={"target": target})
    if isinstance(made, DraftModelSpec):
        draft = made.head.model_copy(update={"model": _folder_or_id(made.head.model, path.parent)})
        return _other_beside(made.model_copy(update={"head": draft}), path.parent)
    return _other_beside(made, path.parent) if isinstance(made, JudgeSpec) else _beside(made, path.parent)


OTHERS: dict[str, type[JudgeSpec | DraftModelSpec]] = {"judge": JudgeSpec, "model": DraftModelSpec}
"""By `head.kind`, what is no draft head."""

S = TypeVar("S", JudgeSpec, DraftModelSpec)


def _other_beside(spec: S, folder: Path) -> S:
    model = spec.target.model
    changes = {
        "target": spec.target.model_copy(update={"model": model and _folder_or_id(model, folder)}),
        "data": spec.data.model_copy(update={"path": folder / expanded(spec.data.path)}),
        "output": folder / expanded(spec.output),
    }
    return spec.model_copy(update=changes)


def _beside(spec: TrainingSpec, folder: Path) -> TrainingSpec:
    """Relative paths counted from `folder`; a model that is no folder there is a hub id."""
    sources = {n: s.model_copy(update={"path": folder / expanded(s.path)}) for n, s in spec.data.sources.items()}
    model = spec.target.model
    start = spec.start_from
    changes: dict[str, Any] = {
        "target": spec.target.model_copy(update={"model": model and _folder_or_id(model, folder)}),
        "start_from": start and _folder_or_id(start, folder),
        "data": spec.data.model_copy(update={"sources": sources}),
        "features": folder / expanded(spec.features),
        "output": folder / expanded(spec.output),
    }
    return spec.model_copy(update=changes)


def _folder_or_id(name: str, folder: Path) -> str:
    beside = folder / expanded(name)
    return str(beside) if is_folder(beside) else name
