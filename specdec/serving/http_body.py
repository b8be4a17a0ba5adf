"""Reading a request's body: its size, its time and its JSON are bounded before anything looks at it."""

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from specdec.serving.api_error import ApiError, invalid
from specdec.serving.limits import ServerLimits

DRAINED = 16
"""A body that is too large is read on up to so many times the limit, so that the client gets to read the answer."""


async def read_json(request: Request, limits: ServerLimits) -> Any:
    """The value of a JSON body. Raises ApiError, 400 or 413."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise invalid(f"content-type: got {kind or 'none'!r}; expected application/json", code="content_type")
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = await _read(request, limits.max_body_bytes)
    except TimeoutError as error:
        raise invalid(f"the body did not arrive within {limits.body_seconds:g} s", code="body_timeout") from error
    except ClientDisconnect as error:
        raise invalid("the client left before its body had arrived", code="disconnected") from error
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"the body is not valid JSON: {reason}", code="invalid_json") from error
    if depth_exceeds(value, limits.max_depth):
        raise invalid(f"the body's JSON is nested more than {limits.max_depth} deep", code="too_deep")
    return value


async def _read(request: Request, most: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most * DRAINED:
            break
        if size <= most:
            chunks.append(chunk)
    if size > most:
        message, ends = f"the body is larger than {most} bytes", {"Connection": "close"}
        raise ApiError(413, message, code="body_too_large", headers=ends)
    return b"".join(chunks)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def depth_exceeds(value: Any, most: int) -> bool:
    """Whether lists and objects are nested deeper than that."""
    level, depth = [value], 0
    while level:
        containers = [one for one in level if isinstance(one, dict | list)]
        if containers and depth >= most:
            return True
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return False
