"""What is to be known of one part: its options with types, defaults and ranges, what it declares, and where it comes from."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from specdec.config.compatibility_report import default_declaration
from specdec.interfaces.declarations import Kind
from specdec.plugins.registry import Registered, Registry

TYPES = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "number": "number",
    "object": "mapping",
    "string": "text",
}

LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minLength": "characters: at least",
    "minItems": "items: at least",
}
"""By the word of JSON Schema."""


def part_page(kind: Kind, name: str, registry: Registry) -> dict[str, Any]:
    """Everything as plain data. Raises UnknownPart with what may be meant."""
    cls = registry.find(kind, name)
    registered: Registered = registry.parts[kind][name]
    schema = cls.Options.model_json_schema()
    required = schema.get("required", [])
    options = [_option(option, facts, schema, option in required) for option, facts in schema.get("properties", {}).items()]
    text = inspect.getdoc(cls) or ""
    source = re.search(r"\*Source: (.*?)\*", text, re.DOTALL)
    return {
        "kind": kind.value,
        "name": name,
        "what it is": text.partition("\n")[0],
        "source": None if source is None else " ".join(source[1].split()).rstrip("."),
        "from": registered.package,
        "options": options,
        "declares": _plain(default_declaration(cls)),
    }


def _option(name: str, facts: Mapping[str, Any], schema: Mapping[str, Any], required: bool) -> dict[str, Any]:
    kinds = [_resolved(kind, schema) for kind in facts.get("anyOf", [facts])]
    ranges = [f"{words} {kind[key]:g}" for kind in kinds for key, words in LIMITS.items() if key in kind]
    return {
        "option": name,
        "type": " or ".join(dict.fromkeys(_type(kind, schema) for kind in kinds if kind.get("type") != "null")),
        "default": None if required else facts.get("default"),
        "required": required,
        "range": ", ".join(ranges) or None,
        "description": facts.get("description"),
    }


def _resolved(facts: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model or enumeration that is defined elsewhere in the schema in place of the reference to it."""
    reference = facts.get("$ref")
    return facts if reference is None else schema["$defs"][reference.rpartition("/")[2]]


def _type(facts: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "enum" in facts or "const" in facts:
        return ", ".join(map(str, facts.get("enum", [facts.get("const")])))
    kind = TYPES.get(str(facts.get("type")), "value")
    if kind == "list" and isinstance(facts.get("items"), Mapping):
        return f"list of {_type(_resolved(facts['items'], schema), schema)}"
    return kind


def _plain(value: Any) -> Any:
    """A declaration as plain data: fields that are set, sets in order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: shown for name, shown in fields.items() if shown not in (None, [], {})}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value))
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
