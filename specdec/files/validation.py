"""What is wrong with data that should be a pydantic model, in words that a writer of YAML understands."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specdec.errors import did_you_mean
from specdec.files.yaml_document import Document, KeyPath, Problem, shortened, shown

_WANTED = {
    "bool": "true or false",
    "dataclass": "a mapping of keys to values",
    "dict": "a mapping of keys to values",
    "finite": "a finite number",
    "float": "a number",
    "frozen_set": "a list",
    "int": "a whole number",
    "list": "a list",
    "mapping": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "none": "null",
    "path": "text",
    "set": "a list",
    "string": "text",
    "tuple": "a list",
}
"""What is expected, by the first word of pydantic's type of error: int_type, int_parsing, int_from_float, ..."""

_LIMITS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
    "string_pattern_mismatch": ("pattern", "text that matches"),
    "string_too_long": ("max_length", "a text of at most"),
    "string_too_short": ("min_length", "a text of at least"),
    "too_long": ("max_length", "a list of at most"),
    "too_short": ("min_length", "a list of at least"),
}
"""By pydantic's type of error, the key of its context that holds the limit, and what comes before it in words."""

ModelT = TypeVar("ModelT", bound=BaseModel)

HINTS = 100
"""Unknown keys for which a known one that may be meant is looked for."""


def checked(
    model: type[ModelT], data: Mapping[Any, Any], context: Mapping[str, Any] | None = None
) -> tuple[ModelT | None, dict[KeyPath, str]]:
    """`data` as a `model`, None with mistakes, and messages by key.

    The strict rules of JSON are used: lists may stand for tuples, words for enumerations, and nothing else is converted.
    """
    try:
        text = json.dumps(data)
    except TypeError as error:
        return None, {(): f"holds a value that YAML could not: {error}"}
    except (ValueError, RecursionError):
        return None, {(): "is nested too deeply, or contains itself"}
    try:
        return model.model_validate_json(text, strict=True, context=context), {}
    except ValidationError as error:
        return None, _messages(error, model, data)


def _messages(error: ValidationError, model: type[BaseModel], data: Mapping[Any, Any]) -> dict[KeyPath, str]:
    expected: dict[KeyPath, list[str]] = {}
    messages: dict[KeyPath, str] = {}
    spelled: dict[int, dict[str, Any]] = {}
    for detail in error.errors(include_url=False):
        path, value, found = _locate(detail["loc"], data, spelled)
        kind, wrong_key = detail["type"], detail["loc"][-1:] == ("[key]",)
        if kind == "extra_forbidden":
            # No more than a few are shown, and to look for what was meant takes a thousand times as long as to count them.
            messages[path] = f"unknown key{_meant(model, path)}" if len(messages) < HINTS else "unknown key"
        elif kind == "missing":
            messages[path] = _required(model, path)
        elif kind == "json_invalid":
            messages[path] = "holds a text that is no Unicode, or is nested too deeply"
        elif kind in ("value_error", "assertion_error"):
            messages[path] = str(detail["ctx"]["error"])
        else:
            expected.setdefault(path, []).append(_expectation(detail, value))
            wanted = " or ".join(dict.fromkeys(expected[path]))
            got = f"the key '{shortened(str(path[-1]))}'" if wrong_key else shown(value) if found else "nothing"
            messages[path] = f"got {got}, expected {wanted}"
    return messages


def _locate(loc: Iterable[str | int], data: Any, spelled: dict[int, dict[str, Any]]) -> tuple[KeyPath, Any, bool]:
    """Pydantic's location without the names of union members, and the value that is there.

    spelled: by identity of a mapping, its keys by their text; filled on the way.
    """
    path: list[str | int] = []
    items = list(loc)
    value, found = data, True
    for index, item in enumerate(items):
        if isinstance(value, Mapping):
            if (by_text := spelled.get(id(value))) is None:
                by_text = spelled[id(value)] = {str(k): k for k in value}
            if item in by_text:
                value = value[by_text[str(item)]]
                path.append(item)
                continue
            if index == len(items) - 1:
                return (*path, item), None, False
        elif isinstance(value, list) and isinstance(item, int) and item < len(value):
            value = value[item]
            path.append(item)
            continue
    return tuple(path), value, found


def _expectation(detail: ErrorDetails, value: Any) -> str:
    """What one of pydantic's errors expected, by its type and context."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in ("literal_error", "enum"):
        return str(context["expected"])
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = context[key]
        return f"{words} {limit:g}" if isinstance(limit, float) else f"{words} {limit}"
    if kind.startswith("model") and isinstance(value, str):
        return "a mapping such as {use: NAME}"
    return _WANTED.get(kind.partition("_")[0], f"something else: {detail['msg']}")


def _required(model: type[BaseModel], path: KeyPath) -> str:
    """That a key is missing, and what belongs there, as far as its field describes it."""
    inner = _model_at(model, path[:-1])
    field = None if inner is None else inner.model_fields.get(str(path[-1]))
    return "is required" + (f": {field.description}" if field is not None and field.description else "")


def _meant(model: type[BaseModel], path: KeyPath) -> str:
    """Where an unknown key belongs, or which one may be meant."""
    inner, key = _model_at(model, path[:-1]), str(path[-1])
    sections = {} if inner is None else {n: _models(field.annotation) for n, field in inner.model_fields.items()}
    owners = [name for name, found in sections.items() if any(key in section.model_fields for section in found)]
    if owners and key not in ("use", "model"):
        return f"; it belongs under {' or '.join(owners)}, as in {owners[0]}: {{{key}: ...}}"
    return did_you_mean(key, _fields(model, path), listing="known keys")


def _fields(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand where the last key of `path` stands."""
    inner = _model_at(model, path[:-1])
    if inner is None:
        return []
    model = inner
    extra = ["extends"] if "drafter" in model.model_fields and "verifier" in model.model_fields else []
    return [*model.model_fields, *extra]


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model whose keys stand below `path`; None where that is no model."""
    for step in path:
        field = model.model_fields.get(str(step))
        inner = next((m for m in _models(field.annotation)), None) if field is not None else None
        if inner is None:
            return None
        model = inner
    return model


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models(argument)]


def validated(
    model: type[ModelT], data: Mapping[str, Any], document: Document, at: KeyPath, context: Mapping[str, Any] | None = None
) -> tuple[ModelT | None, list[Problem]]:
    """`data` as a `model`, and its mistakes. Nothing is coerced: 1.9, "3" and true are not whole numbers.

    context: what the model's own validators may ask for. With mistakes, the value is what is left without the faulty keys,
    None if that is not enough.
    """
    value, found = checked(model, data, context)
    problems = [document.problem((*at, *path), message) for path, message in found.items()]
    wrong = {path[0] for path in found if path}
    if value is None and wrong:
        value, _ = checked(model, {k: v for k, v in data.items() if str(k) not in wrong}, context)
    return value, problems
