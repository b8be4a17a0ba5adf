"""What an answer must match: the forms of `Request.response_format`, checked for shape."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from specdec.errors import SpecError, did_you_mean
from specdec.files.validation import checked


class _Format(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class NamedSchema(BaseModel):
    """A JSON schema as OpenAI's API wraps it. name, description and strict change nothing: every schema is kept to strictly."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    schema_: Annotated[dict[str, Any], Field(alias="schema", description="the JSON schema")]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Format):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class JsonObjectFormat(_Format):
    """Any JSON object."""

    type: Literal["json_object"]


class RegexFormat(_Format):
    """A text that a regular expression matches from beginning to end."""

    type: Literal["regex"]
    regex: Annotated[str, Field(min_length=1, description="the regular expression")]


ResponseFormat: TypeAlias = JsonSchemaFormat | JsonObjectFormat | RegexFormat

FORMATS: Mapping[str, type[ResponseFormat]] = {
    "json_schema": JsonSchemaFormat,
    "json_object": JsonObjectFormat,
    "regex": RegexFormat,
}

FREE = "text"
"""The type of OpenAI's API that asks for nothing."""


def response_format_of(given: Any) -> ResponseFormat | None:
    """A format as it is, or that of a mapping; None for free text. Raises SpecError with everything that is wrong."""
    if given is None or isinstance(given, _Format):
        return given  # type: ignore[return-value]
    if not isinstance(given, Mapping):
        raise SpecError(f"response_format: got {given!r}; expected a mapping, such as {{'type': 'json_object'}}")
    kind = given.get("type")
    if kind == FREE and len(given) == 1:
        return None
    if not isinstance(kind, str) or kind not in FORMATS:
        hint = did_you_mean(str(kind), [*FORMATS, FREE])
        raise SpecError(f"response_format.type: {'is required' if kind is None else f'got {kind!r}'}{hint}")
    value, found = checked(FORMATS[kind], given)
    if found:
        raise SpecError("\n".join(".".join(("response_format", *map(str, path))) + f": {what}" for path, what in found.items()))
    return value
