"""Errors as OpenAI's servers answer them: {"error": {message, type, param, code}} with a status."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec.errors import SpecdecError, SpecError, TargetMismatch

INVALID, AUTHENTICATION, OVERLOAD, INTERNAL, UNAVAILABLE, TIMED_OUT = (
    "invalid_request_error",
    "authentication_error",
    "rate_limit_error",
    "server_error",
    "service_unavailable_error",
    "timeout_error",
)

PLACE = re.compile(r"^prompts\[\d+\](, sample \d+)?(, (step \d+|first token))?: ")
"""Where an error of a batch says that it occurred, which is of no use to a client."""

FIELDS = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "stop_ids": "stop_token_ids"}
"""What fields of a `Request` are called in a body, where they differ."""

NAMED = re.compile(r"^(?:sampling\.)?(\w+)(?:[.\[][^:]*)?: ")


@dataclass(eq=False)
class ApiError(Exception):
    """What a client is told. param: the field of the body that is wrong. retry_after: in seconds."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        """The body of the answer, and the data of an event where streaming has begun."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def all_headers(self) -> dict[str, str]:
        """Those of the answer, with Retry-After where there is one."""
        retry = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**self.headers, **retry}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, message, param=param, code=code)


def refused(error: SpecdecError) -> ApiError:
    """What a request that cannot be served is answered: 400, or 422 where it is in order and this model cannot do it."""
    message = PLACE.sub("", str(error))
    found = NAMED.match(message)
    param = None if found is None else FIELDS.get(found[1], found[1])
    if isinstance(error, TargetMismatch):
        return ApiError(422, message, param=param, code="unsupported_by_model")
    if not isinstance(error, SpecError):
        return internal()
    if "the target's context holds" in message:
        return invalid(message, "messages", "context_length_exceeded")
    return invalid(message, param, "invalid_value")


def failed(error: BaseException) -> ApiError:
    """What a request is answered that began and failed.

    A grammar that leaves no token is the request's own fault; what wraps an unexpected exception is not.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpecError) and error.__cause__ is None:
        return refused(error)
    return internal()


def internal() -> ApiError:
    """500; what happened is in the server's log."""
    return ApiError(500, "the server failed to answer this request; its log has the reason", INTERNAL, code="internal_error")


def shutting_down() -> ApiError:
    """503."""
    return ApiError(503, "the server is shutting down", UNAVAILABLE, code="shutting_down", retry_after=5)
