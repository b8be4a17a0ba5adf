"""Measurements in YAML: files that a program wrote and that a person may edit."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from specdec.errors import SpecError, listed
from specdec.files.atomic import write_whole
from specdec.files.validation import validated
from specdec.files.yaml_document import Document, Problem, read_file
from specdec.files.yaml_syntax import strange_space

NUMBER_LIKE = re.compile(r"[-+.0-9][-+.0-9eE]*")
ModelT = TypeVar("ModelT", bound=BaseModel)


def read_model(path: Path, model: type[ModelT], kind: str) -> ModelT:
    """The model in a YAML file. `kind` is the value that the file must have under `kind`, so that files are not mixed up.

    Raises SpecError with every mistake and its line.
    """
    document = read_file(path)
    data = dict(document.data)
    given = data.pop("kind", None)
    if given != kind and not document.problems:
        got = "has no kind" if given is None else f"got {given!r}"
        raise SpecError(str(document.problem(("kind",), f"{got}, expected '{kind}'")))
    return checked_model(document, model, data)


def checked_model(document: Document, model: type[ModelT], data: Mapping[str, Any], more: Sequence[Problem] = ()) -> ModelT:
    """The model of a document's data. Raises SpecError with every mistake and its line, `more` included."""
    value, found = validated(model, data, document, ())
    problems = [*document.problems, *found, *more]
    if problems or value is None:
        raise SpecError(listed(problems))
    return value


def write_model(path: Path, model: BaseModel, kind: str) -> None:
    """Write the file that `read_model` reads back; it appears only when it is whole."""
    data = {"kind": kind, **model.model_dump(mode="json", exclude_none=True, exclude_defaults=True)}
    write_whole(path, yaml_text(data))


def yaml_text(data: Mapping[str, Any]) -> str:
    """YAML that our reader reads back, numbers in six digits."""
    text: str = yaml.dump(_rounded(data), Dumper=_Rows, sort_keys=False, allow_unicode=True, width=120)
    return text


class _Rows(yaml.SafeDumper):
    """Lists of numbers on one line."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        flat = all(isinstance(item, int | float) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat or flow_style)


def _text(dumper: _Rows, text: str) -> yaml.ScalarNode:
    """In quotes where our reader would take it for a number, or refuse a strange space at its ends.

    0998 is a number in YAML 1.2, and none in what PyYAML writes.
    """
    quoted = NUMBER_LIKE.fullmatch(text) or strange_space(text[:1] + text[-1:]) is not None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_Rows.add_representer(str, _text)


def _rounded(value: Any) -> Any:
    """Six digits: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
