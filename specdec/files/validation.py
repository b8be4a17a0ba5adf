"""What is wrong with data that should be a pydantic model, in words that a writer of YAML understands."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specdec.errors import did_you_mean
from specdec.files.yaml_document import Document, KeyPath, Problem, shortened, shown

_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "a mapping of keys to values",
    "an object": "a mapping of keys to values",
    "None": "null",
}

HINTS = 100
"""Unknown keys for which a known one that may be meant is looked for."""


def faults(model: type[BaseModel], data: Mapping[Any, Any], context: Mapping[str, Any] | None = None) -> dict[KeyPath, str]:
    """Messages by key. The strict rules of JSON are used: lists may stand for tuples, words for enumerations."""
    try:
        text = json.dumps(data)
    except TypeError as error:
        return {(): f"holds a value that YAML could not: {error}"}
    except (ValueError, RecursionError):
        return {(): "is nested too deeply, or contains itself"}
    try:
        model.model_validate_json(text, strict=True, context=context)
    except ValidationError as error:
        return _messages(error, model, data)
    return {}


def _messages(error: ValidationError, model: type[BaseModel], data: Mapping[Any, Any]) -> dict[KeyPath, str]:
    expected: dict[KeyPath, list[str]] = {}
    messages: dict[KeyPath, str] = {}
    spelled: dict[int, dict[str, Any]] = {}
    for detail in error.errors(include_url=False):
        path, value, found = _locate(detail["loc"], data, spelled)
        if detail["loc"][-1:] == ("[key]",):
            if str(path[-1]).lstrip("-").isdecimal() and len(str(path[-1])) < 20:
                continue
            messages[path] = f"got the key '{shortened(str(path[-1]))}', expected a whole number"
        elif detail["type"] == "extra_forbidden":
            # No more than a few are shown, and to look for what was meant takes a thousand times as long as to count them.
            wanted = did_you_mean(str(path[-1]), _fields(model, path), listing="known keys") if len(messages) < HINTS else ""
            messages[path] = f"unknown key{wanted}"
        elif detail["type"] == "missing":
            messages[path] = "is required"
        elif detail["type"] == "json_invalid":
            messages[path] = "holds a text that is no Unicode, or is nested too deeply"
        elif detail["type"] in ("value_error", "assertion_error"):
            messages[path] = detail["msg"].partition(", ")[2]
        else:
            expected.setdefault(path, []).append(_expectation(detail["msg"], value))
            wanted = " or ".join(dict.fromkeys(expected[path]))
            messages[path] = f"got {shown(value) if found else 'nothing'}, expected {wanted}"
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


def _expectation(message: str, value: Any) -> str:
    text = message.removeprefix("Input should be ")
    text = text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    if text == "an object" and isinstance(value, str):
        return "a mapping such as {use: NAME}"
    if (sizes := re.match(r"\w+ should have (at least|at most) (\d+) (character|item)s?", text)) is not None:
        return f"a {'text' if sizes[3] == 'character' else 'list'} of {sizes[1]} {sizes[2]}"
    text = re.sub(r"^(Input|Value|String|List|Tuple|Dictionary|Number) should (be |have )?", "", text)
    text = re.sub(r"^(an? )?(instance of|valid) ", r"\1", text).partition(", unable to")[0].partition(", got")[0]
    return _WORDS.get(message.removeprefix("Input should be "), text[:1].lower() + text[1:])


def _fields(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand where the last key of `path` stands."""
    for step in path[:-1]:
        field = model.model_fields.get(str(step))
        inner = next((m for m in _models(field.annotation)), None) if field is not None else None
        if inner is None:
            return []
        model = inner
    extra = ["extends"] if "drafter" in model.model_fields and "verifier" in model.model_fields else []
    return [*model.model_fields, *extra]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models(argument)]


ModelT = TypeVar("ModelT", bound=BaseModel)


# --- validation -----------------------------------------------------------------------------------------------------


def validated(
    model: type[ModelT], data: Mapping[str, Any], document: Document, at: KeyPath, context: Mapping[str, Any] | None = None
) -> tuple[ModelT | None, list[Problem]]:
    """`data` as a `model`, and its mistakes. Nothing is coerced: 1.9, "3" and true are not whole numbers.

    context: what the model's own validators may ask for. With mistakes, the value is what is left without the faulty keys,
    None if that is not enough.
    """
    found = faults(model, data, context)
    problems = [document.problem((*at, *path), message) for path, message in found.items()]
    if not found:
        return model.model_validate_json(json.dumps(data), context=context), []
    wrong = {path[0] for path in found if path}
    rest = {k: v for k, v in data.items() if str(k) not in wrong}
    if not wrong or faults(model, rest, context):
        return None, problems
    return model.model_validate_json(json.dumps(rest), context=context), problems
