"""The decode thread: the only one that touches models. Tickets join the running batches and leave them."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from specdec.decoding.decoder import Decoder
from specdec.interfaces.results import StepRecord
from specdec.serving.api_error import TIMED_OUT, UNAVAILABLE, ApiError, shutting_down
from specdec.serving.lane import Lane, log
from specdec.serving.ticket import Report, Update
from specdec.serving.ticket_queue import TicketQueue

COUNTED_TOGETHER = 16
"""Steps that are reported at once where nothing else is: to wake the event loop costs more than to count."""


class Engine:
    """Owns the decoders; `queue` is how other threads speak to it.

    decoders: by the name of the model that a request asks for. deliver: is given what each round came to, in the decode
    thread, and must not wait.
    """

    def __init__(self, decoders: Mapping[str, Decoder], queue: TicketQueue, deliver: Callable[[Report], None]) -> None:
        self._lanes = {name: Lane(decoder) for name, decoder in decoders.items()}
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="specdec decode", daemon=True)
        self.queue = queue
        self.seconds = 0.0
        self._steps: list[list[StepRecord]] = []

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken and answered."""
        return self._thread.is_alive() and not self.queue.drains

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not len(self.queue) and not any(lane.tickets for lane in self._lanes.values())

    def stop(self, seconds: float) -> None:
        """End the thread and wait for it so long; what still runs or waits is answered with 503."""
        self.queue.drain(stops=True)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self.queue.stops:
            self.queue.wait(busy=any(lane.tickets for lane in self._lanes.values()))
            self._guarded_round()
        self._finish(Report(self._turned_away(running=True)))

    def _guarded_round(self) -> None:
        try:
            report = self._round()
        except Exception as error:
            log(error)
            report = Report([update for lane in self._lanes.values() for update in lane.fail(error)])
        self._finish(report)
        self.seconds = time.thread_time()

    def _round(self) -> Report:
        updates = [*self._removed(), *(self._turned_away() if self.queue.drains else [])]
        begun = self.queue.take_fitting()
        for name, lane in self._lanes.items():
            own = [ticket for ticket in begun if ticket.model == name]
            updates += [*lane.begin(own), *lane.news()] if own else []
            if lane.batch.sequences:
                lane.batch.queue = len(self.queue) > 0
                records, failures = lane.step()
                if records:
                    self._steps.append(records)
                updates += [*failures, *lane.news()]
        return Report(updates, (), begun)

    def _finish(self, report: Report) -> None:
        """Give back the room of what has ended, and deliver what somebody waits for; what is only counted comes with it."""
        running = {ticket for lane in self._lanes.values() for ticket in lane.tickets}
        for ticket in dict.fromkeys(update.ticket for update in report.updates if update.ends):
            if ticket not in running and ticket.began is not None and ticket.ended is None:
                self.queue.give_back(ticket)
        if report.updates or report.begun or len(self._steps) >= COUNTED_TOGETHER:
            steps, self._steps = self._steps, []
            self._deliver(replace(report, steps=steps))

    def _removed(self) -> Iterable[Update]:
        """Let go of what nobody wants, and of what took too long."""
        cancelled = self.queue.take_cancelled()
        for ticket in [one for lane in self._lanes.values() for one in lane.drop(cancelled)] if cancelled else []:
            self.queue.give_back(ticket)
        now = time.monotonic()
        overdue = {ticket for lane in self._lanes.values() for ticket in lane.tickets if now > ticket.deadline}
        dropped = [ticket for lane in self._lanes.values() for ticket in lane.drop(overdue)] if overdue else []
        late = self.queue.take_late()
        waited = ApiError(503, "no place became free in time", UNAVAILABLE, code="queue_timeout")
        waited.retry_after = self.queue.retry_after()
        slow = ApiError(503, "the answer took longer than this server allows", TIMED_OUT, code="request_timeout")
        return [*(Update(ticket, None, slow) for ticket in dropped), *(Update(ticket, None, waited) for ticket in late)]

    def _turned_away(self, *, running: bool = False) -> list[Update]:
        """Answer what waits with 503, and what runs too if asked to."""
        tickets = self.queue.take_all()
        for lane in self._lanes.values() if running else ():
            tickets += lane.drop(set(lane.tickets))
        return [Update(ticket, None, shutting_down()) for ticket in tickets]
