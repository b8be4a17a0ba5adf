"""Between the endpoints and the decode thread: what a request becomes, and who is told of its answer."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.errors import SpecdecError
from specdec.serving.api_error import ApiError, invalid, refused
from specdec.serving.engine import Engine
from specdec.serving.exchange import Exchange
from specdec.serving.limits import ServerLimits
from specdec.serving.metrics import Metrics
from specdec.serving.preparing import Preparation, Ready
from specdec.serving.ticket import Report, Ticket
from specdec.serving.ticket_queue import TicketQueue


class Service:
    """A running server's state. It is started and used in one event loop.

    decoders: by the name that a request's `model` gives; the first answers requests without one.
    slots: tokens that all KV caches may hold together. drafters: by model, the names of its drafters, where it has several.
    """

    def __init__(
        self,
        decoders: Mapping[str, Decoder],
        limits: ServerLimits,
        slots: float = math.inf,
        drafters: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.decoders = dict(decoders)
        self.drafters = drafters or {}
        self.limits = limits
        self.default = next(iter(self.decoders))
        self.started = int(time.time())
        queue = TicketQueue(limits.max_waiting, limits.max_running, slots)
        self.engine = Engine(self.decoders, queue, self._deliver)
        self.metrics = Metrics(self.default, queue)
        self._preparations = {name: Preparation(decoder) for name, decoder in self.decoders.items()}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to decode. Called in the event loop that answers."""
        self._loop = asyncio.get_running_loop()
        self.engine.start()

    async def stop(self) -> None:
        """Answer everything that is left with 503 and end the threads."""
        await asyncio.to_thread(self.engine.stop, self.limits.shutdown_seconds)
        for preparation in self._preparations.values():
            preparation.close()

    def _deliver(self, report: Report) -> None:
        """In the decode thread: hand a round over to the event loop."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._dispatch, report)
        except RuntimeError:
            self._loop = None

    def _dispatch(self, report: Report) -> None:
        for update in report.updates:
            update.ticket.owner.put(update)
        self.metrics.take(report)

    def model(self, name: str | None) -> str:
        """The name of the decoder that is meant. Raises ApiError, 404."""
        if name is None:
            return self.default
        if name not in self.decoders:
            known = ", ".join(self.decoders)
            raise ApiError(404, f"model: there is no {name!r} here; known: {known}", param="model", code="model_not_found")
        return name

    async def ready(self, model: str, requests: Sequence[Request]) -> list[Ready]:
        """Requests with ids, checked, with their grammars compiled. Raises ApiError."""
        preparation = self._preparations[model]
        try:
            ready = await preparation.encode(list(requests))
            if any(request.response_format is not None for request in requests):
                async with asyncio.timeout(self.limits.compile_seconds):
                    ready = await asyncio.wrap_future(preparation.compile(ready))
        except SpecdecError as error:
            raise refused(error) from error
        except TimeoutError as error:
            message = f"response_format: not compiled within {self.limits.compile_seconds:g} s; a simpler one would work"
            raise invalid(message, "response_format", "too_large") from error
        return ready

    def submit(self, model: str, ready: Sequence[Ready], *, streams: bool) -> Exchange:
        """Put requests into the queue. Raises ApiError."""
        now = time.monotonic()
        exchange = Exchange()
        for one in ready:
            ticket = Ticket(
                model=model,
                request=one.request,
                tokens=one.tokens,
                streams=streams,
                deadline=now + self.limits.request_seconds,
                queue_deadline=now + self.limits.queue_seconds,
                owner=exchange,
                first_choice=exchange.choices,
            )
            exchange.tickets.append(ticket)
        self.engine.queue.submit(exchange.tickets)
        return exchange

    def cancel(self, exchange: Exchange) -> None:
        """Nobody waits for its answers any more."""
        self.engine.queue.cancel(exchange.tickets)
