"""The fields of requests: OpenAI's, and those that vLLM's clients know. Others are refused by name."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from specdec.files.validation import checked
from specdec.serving.api_error import ApiError, invalid

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "priority": (0,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that clients send although they ask for nothing: the values at which they do."""

NEVER: Mapping[str, str] = {
    "allow_lossy": "only the strategy of the server may allow a lossy rule",
    "chat_template": "the server's chat template is used",
    "lora": "the server's model is used",
    "strategy": "the server's strategy is used",
    "trust_remote_code": "only whoever starts the server may trust a model's code",
}
"""Fields that a request may never set, and why."""

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Text: TypeAlias = Annotated[str, Field(strict=True)]


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What both endpoints take."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    model: Text | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    logit_bias: dict[str, Number] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_draft_sources: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


class CompletionBody(Body):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0)] | None = None


class ChatBody(Body):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None


BodyT = TypeVar("BodyT", bound=Body)


def parsed(model: type[BodyT], given: Any) -> BodyT:
    """A body's fields. Raises ApiError, 400, with everything that is wrong; its `param` is the first field that is."""
    if not isinstance(given, dict):
        raise invalid("the body must be a JSON object")
    if forbidden := [name for name in given if name in NEVER]:
        raise invalid(f"{forbidden[0]}: not taken from a request: {NEVER[forbidden[0]]}", forbidden[0], "forbidden_field")
    left = {name: value for name, value in given.items() if name not in NEUTRAL or name in model.model_fields}
    for name in given.keys() - left.keys():
        if name != "add_generation_prompt" or not given.get("continue_final_message"):
            _refuse_active(name, given[name])
    body, found = checked(model, left)
    if body is None:
        path, first = next(iter(found.items()))
        lines = [f"{'.'.join(map(str, where)) or 'body'}: {what}" for where, what in found.items()]
        code = "unknown_field" if first.startswith("unknown key") else "invalid_value"
        raise invalid("\n".join(lines[:8]).replace("unknown key", "unknown field"), str(path[0]) if path else None, code)
    return body


def _refuse_active(name: str, value: Any) -> None:
    if value is not None and not any(type(value) is type(one) and value == one for one in NEUTRAL[name]):
        works = " or ".join(repr(one) for one in NEUTRAL[name]) or "null"
        raise ApiError(400, f"{name}: not supported; only {works} is accepted", param=name, code="unsupported_field")
