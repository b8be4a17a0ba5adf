"""How much a server takes on, and how much one request may ask of it."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from specdec.errors import SpecError
from specdec.files.validation import checked


class ServerLimits(BaseModel):
    """The limits of a server. Sequences are answers in the making: a request with n = 3 has three."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_running: Annotated[int, Field(ge=1, description="sequences decoded at once")] = 8
    max_waiting: Annotated[int, Field(ge=0, description="prompts that wait at most; more are answered with 429")] = 256
    kv_bytes: Annotated[int | None, Field(ge=1, description="bytes that KV caches fill; unset: a third of what is free")] = None
    max_new_tokens: Annotated[int, Field(ge=1, description="tokens of an answer at most, and where a chat names none")] = 4096
    request_seconds: Annotated[float, Field(gt=0, description="seconds from a request to the end of its answer")] = 600.0
    queue_seconds: Annotated[float, Field(gt=0, description="seconds that a request waits before it begins")] = 120.0
    send_seconds: Annotated[float, Field(gt=0, description="seconds in which a client must take what is sent")] = 60.0
    body_seconds: Annotated[float, Field(gt=0, description="seconds in which a client must have sent its request")] = 60.0
    shutdown_seconds: Annotated[float, Field(gt=0, description="seconds in which running answers finish at shutdown")] = 60.0
    max_body_bytes: Annotated[int, Field(ge=1, description="bytes of a request's body")] = 4 * 2**20
    max_depth: Annotated[int, Field(ge=1, description="nesting of a request's JSON")] = 64
    max_messages: Annotated[int, Field(ge=1, description="messages of a conversation")] = 1024
    max_prompts: Annotated[int, Field(ge=1, description="prompts of a request to /v1/completions")] = 64
    max_n: Annotated[int, Field(ge=1, description="answers to one prompt")] = 16
    max_stop: Annotated[int, Field(ge=0, description="stop strings and stop tokens of a request")] = 16
    max_stop_length: Annotated[int, Field(ge=1, description="characters of a stop string")] = 256
    max_logit_bias: Annotated[int, Field(ge=0, description="tokens that a request may bias")] = 1024
    max_logprobs: Annotated[int, Field(ge=0, description="likeliest tokens reported beside each token")] = 20
    max_schema_bytes: Annotated[int, Field(ge=1, description="bytes of a JSON schema or a regular expression")] = 65_536
    compile_seconds: Annotated[float, Field(gt=0, description="seconds in which a schema must be compiled")] = 5.0


def limits_of(given: Mapping[str, Any]) -> ServerLimits:
    """Limits by name. Raises SpecError with everything that is wrong."""
    limits, found = checked(ServerLimits, given)
    if limits is None:
        raise SpecError("\n".join(f"limit {'.'.join(map(str, path))}: {what}" for path, what in found.items()))
    return limits
