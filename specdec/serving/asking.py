"""From a checked body to requests of a decoder, within the server's limits."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.requests import Request, requests_of
from specdec.errors import SpecdecError
from specdec.sampling.params import SamplingParams
from specdec.serving.api_error import invalid, refused
from specdec.serving.bodies import Body, ChatBody, CompletionBody
from specdec.serving.limits import ServerLimits

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for /v1/completions."""

TURN = ("role", "content")
"""Keys of a message."""


def chat_requests(body: ChatBody, below: SamplingParams, limits: ServerLimits, control_tokens: str) -> list[Request]:
    """The one request of a conversation. Raises ApiError. control_tokens: what becomes of those that a message contains."""
    if len(body.messages) > limits.max_messages:
        raise _too_many("messages", len(body.messages), limits.max_messages)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs: true", "top_logprobs", "invalid_value")
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise invalid("max_completion_tokens: differs from max_tokens", "max_completion_tokens", "invalid_value")
    messages = [_turn(number, message) for number, message in enumerate(body.messages)]
    tokens = body.max_completion_tokens or body.max_tokens
    options = _options(body, tokens or limits.max_new_tokens, (body.top_logprobs or 0) if body.logprobs else None, limits)
    options |= {
        "control_tokens": control_tokens,
        "chat_template_kwargs": body.chat_template_kwargs or {},
        "continue_final_message": bool(body.continue_final_message),
    }
    return _requests([messages], below, options)


def completion_requests(body: CompletionBody, below: SamplingParams, limits: ServerLimits) -> list[Request]:
    """One request for each prompt. Raises ApiError."""
    prompt: Any = body.prompt
    several = isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int))
    prompts = prompt if several else [prompt]
    if not prompts:
        raise invalid("prompt: is empty", "prompt", "invalid_value")
    if len(prompts) > limits.max_prompts:
        raise _too_many("prompt", len(prompts), limits.max_prompts)
    tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _requests(prompts, below, _options(body, tokens, body.logprobs, limits))


def _requests(prompts: Sequence[Any], below: SamplingParams, options: Mapping[str, Any]) -> list[Request]:
    try:
        return [requests_of([prompt], below, **options)[0] for prompt in prompts]
    except SpecdecError as error:
        raise refused(error) from error


def _turn(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in message.items() if value is not None}
    if strangers := sorted(given.keys() - set(TURN)):
        where = f"messages[{number}].{strangers[0]}"
        raise invalid(f"{where}: unknown field; a message has role and content", where, "unknown_field")
    return given


def _options(body: Body, max_tokens: int, logprobs: int | None, limits: ServerLimits) -> dict[str, Any]:
    _check_limits(body, max_tokens, logprobs, limits)
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k if body.top_k is not None and body.top_k > 0 else None,
        "min_p": body.min_p or None,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": _bias(body.logit_bias),
        "min_new_tokens": body.min_tokens,
    }
    options: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    options |= {
        "max_new_tokens": max_tokens,
        "n": body.n or 1,
        "stop": () if body.stop is None else body.stop,
        "stop_ids": body.stop_token_ids or (),
        "ignore_eos": bool(body.ignore_eos),
        "skip_special_tokens": body.skip_special_tokens is not False,
        "logprobs": logprobs,
        "response_format": body.response_format,
    }
    return options if body.seed is None else {**options, "seed": body.seed}


def _bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    if wrong := [key for key in given if not key.isdecimal() or len(key) > 18]:
        raise invalid(f"logit_bias: {wrong[0]!r} is no token id", "logit_bias", "invalid_value")
    return {int(key): value for key, value in given.items()}


def _check_limits(body: Body, max_tokens: int, logprobs: int | None, limits: ServerLimits) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    sizes = {
        "max_tokens": (max_tokens, limits.max_new_tokens),
        "n": (body.n or 1, limits.max_n),
        "stop": (len(stops) + len(body.stop_token_ids or ()), limits.max_stop),
        "logit_bias": (len(body.logit_bias or ()), limits.max_logit_bias),
        "top_logprobs" if isinstance(body, ChatBody) else "logprobs": (logprobs or 0, limits.max_logprobs),
    }
    for name, (size, most) in sizes.items():
        if size > most:
            raise _too_many(name, size, most)
    if (longest := max(map(len, stops), default=0)) > limits.max_stop_length:
        raise invalid(f"stop: a text of {longest} characters; at most {limits.max_stop_length} are taken", "stop", "too_large")
    if body.response_format is not None and len(json.dumps(body.response_format)) > limits.max_schema_bytes:
        message = f"response_format: more than {limits.max_schema_bytes} bytes"
        raise invalid(message, "response_format", "too_large")


def _too_many(name: str, size: int, most: int) -> Exception:
    return invalid(f"{name}: got {size}; this server takes at most {most}", name, "too_large")
