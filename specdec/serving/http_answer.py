"""Answers on the wire: whole ones and streams of events, which end when the client leaves."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from starlette.responses import Response

from specdec.serving.answer_format import event_bytes, json_text
from specdec.serving.api_error import ApiError

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


DONE = b"data: [DONE]\n\n"
"""What ends every stream."""

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
    return Response(json_text(value).encode(), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error's answer."""
    return json_response(error.body(), error.status, error.all_headers())


async def left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Awaitable[T], *ends: asyncio.Future[None]) -> T:
    """What `work` gives. Raises ClientGone where the client leaves before, or one of `ends` is set."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    awaited: list[asyncio.Future[Any]] = [task, gone, *ends]
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
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
        clock = _WriteClock(self._seconds)
        try:
            await while_connected(receive, self._send_all(clock.watching(send)), clock.expired)
        except ClientGone:
            return
        finally:
            clock.stop()
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
        await send({"type": "http.response.body", "body": first, "more_body": True})
        try:
            async for events in self._events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        except ApiError as error:
            await send({"type": "http.response.body", "body": event_bytes(error.body()) + DONE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class _WriteClock:
    """`expired` is set when a write has taken too long. One timer for all writes: a write costs two assignments."""

    def __init__(self, seconds: float) -> None:
        self.expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seconds, self._since = seconds, math.inf
        self._timer = self._wait(seconds)

    def _wait(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._since + self._seconds - asyncio.get_running_loop().time()
        if left <= 0:
            self.expired.set_result(None)
        else:
            self._timer = self._wait(min(left, self._seconds))

    def watching(self, send: Send) -> Send:
        """`send`, under the clock."""
        now = asyncio.get_running_loop().time

        async def timed(message: MutableMapping[str, Any]) -> None:
            self._since = now()
            await send(message)
            self._since = math.inf

        return timed

    def stop(self) -> None:
        """Nothing is written any more."""
        self._timer.cancel()
        self.expired.cancel()
