"""Answers on the wire: whole ones and streams of events, which end when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from starlette.responses import Response

from specdec.serving.answer_format import event_bytes
from specdec.serving.api_error import ApiError

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
"""The last one keeps proxies from collecting events."""


class ClientGone(Exception):
    """The client has left: nobody reads an answer."""


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error's answer."""
    return json_response(error.body(), error.status, error.all_headers())


async def left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives. Raises ClientGone where the client leaves before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()


class EventStream(Response):
    """Server-sent events, whose first is there before the headers go out. An error after that is an event, and ends them.

    events: bytes of one event or more. on_end: called when the stream has ended, however it did. seconds: for each write.
    """

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None], seconds: float) -> None:
        self.status_code, self.background, self.raw_headers = 200, None, [*STREAM_HEADERS]
        self._events, self._on_end, self._seconds = events, on_end, seconds

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send))
        except (ClientGone, TimeoutError):
            return
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        try:
            first = await anext(self._events)
        except ApiError as error:
            answer = error_response(error)
            headers = [*answer.raw_headers]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            await send({"type": "http.response.body", "body": answer.body})
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._write(send, first)
        try:
            async for events in self._events:
                await self._write(send, events)
        except ApiError as error:
            await self._write(send, event_bytes(error.body()) + b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, events: bytes) -> None:
        async with asyncio.timeout(self._seconds):
            await send({"type": "http.response.body", "body": events, "more_body": True})
