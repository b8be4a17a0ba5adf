"""The JSON Schema of a strategy file: every registered part with its options, told apart by `use`."""

from typing import Any

from specdec.config.strategy_spec import StrategySpec
from specdec.interfaces.declarations import Kind
from specdec.plugins.registry import Registry

_ANY_NAME = {"description": "another strategy to start from", "type": "string"}


def spec_schema(registry: Registry) -> dict[str, Any]:
    """A schema for editors, installed plug-ins included. A strategy names its drafter, or another one that it extends."""
    schema = StrategySpec.model_json_schema()
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    definitions.pop("PartSpec", None)
    properties = schema["properties"]
    for kind in Kind:
        parts = [_part(kind, name, r.cls.Options, definitions) for name, r in registry.parts[kind].items()]
        definitions[kind.value] = {"oneOf": parts}
        properties[kind.value] = {
            "description": StrategySpec.model_fields[kind.value].description,
            "anyOf": [{"$ref": f"#/$defs/{kind.value}"}, _name(kind, registry)],
        }
    properties["extends"] = _ANY_NAME
    schema["required"] = []
    schema["anyOf"] = [{"required": ["drafter"]}, {"required": ["extends"]}]
    schema["title"] = "specdec strategy"
    schema["description"] = "One composed decoder."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _name(kind: Kind, registry: Registry) -> dict[str, Any]:
    """The short form: a name, or for a target a model's path or hub id too."""
    if kind is Kind.TARGET:
        return {"type": "string", "minLength": 1, "description": "a registered target, or a model's path or hub id"}
    return {"enum": list(registry.parts[kind])}


def _part(kind: Kind, name: str, options: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    prefix = f"{kind.value}-{name}-"
    schema = options.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[prefix + inner] = definition
    return {
        **schema,
        "title": f"{kind} {name}",
        "properties": {"use": {"const": name}, **schema.get("properties", {})},
        "required": ["use", *schema.get("required", [])],
    }
