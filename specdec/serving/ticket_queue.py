"""Tickets that wait for the decode thread, first come first served."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from specdec.serving.api_error import OVERLOAD, ApiError, shutting_down
from specdec.serving.ticket import Ticket, Tickets

USUAL_SECONDS = 2.0
"""What an answer takes before any has been measured."""

LONGEST_RETRY = 60
"""Seconds after which a client is told to try again, at most."""


class TicketQueue:
    """Everything that other threads say to the decode thread.

    most: tickets that wait at most. places: sequences that run at most; slots: tokens of their KV caches at most.
    """

    def __init__(self, most: int, places: int, slots: float) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._cancelled: set[Ticket] = set()
        self._seconds = USUAL_SECONDS
        self._running: set[Ticket] = set()
        self._widest = 0
        self._renews = False
        self.places = self.free_places = places
        self.slots = slots
        self.drains = self.stops = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def used_share(self) -> float:
        """Of the KV memory, what is reserved."""
        rows = self.places - self.free_places
        return 0.0 if math.isinf(self.slots) else rows * self._widest / self.slots

    def submit(self, tickets: Tickets) -> None:
        """Let tickets wait, all or none.

        Raises ApiError: 400 for one that never fits, 429 with a full queue, 503 in shutdown.
        """
        for ticket in tickets:
            self._refuse_too_large(ticket)
        with self._changed:
            if self.drains:
                raise shutting_down()
            waiting = len(self._waiting)
            if waiting + len(tickets) > self._most + self.free_places:
                message = f"the queue is full: {waiting} wait, and {self._most} may"
                raise ApiError(429, message, OVERLOAD, code="queue_full", retry_after=self.retry_after())
            self._waiting.extend(tickets)
            self._changed.notify()

    def _refuse_too_large(self, ticket: Ticket) -> None:
        if ticket.samples > self.places:
            message = f"{ticket.samples} answers to a prompt; this server decodes {self.places} sequences at once"
            raise ApiError(400, message, param="n", code="too_many_sequences")
        if ticket.slots > self.slots:
            message = (
                f"prompt and answers may take {ticket.slots} tokens together; this server's memory for them holds "
                f"{int(self.slots)}; a smaller max_tokens or n would work"
            )
            raise ApiError(400, message, param="max_tokens", code="exceeds_memory")

    def cancel(self, tickets: Tickets) -> None:
        """Nobody wants these answers any more."""
        with self._changed:
            self._cancelled.update(ticket for ticket in tickets if ticket.ended is None)
            self._changed.notify()

    def drain(self, *, stops: bool = False) -> None:
        """Take nothing more; with `stops` the thread is to end."""
        with self._changed:
            self.drains, self.stops = True, self.stops or stops
            self._changed.notify()

    def wait(self, *, busy: bool) -> None:
        """Until there is something to do; `busy`: there is."""
        with self._changed:
            while not (busy or self._waiting or self._cancelled or self.stops):
                self._changed.wait()

    def take_cancelled(self) -> set[Ticket]:
        """Those that nobody wants; those of them that waited have left the queue."""
        if not self._cancelled:
            return set()
        with self._changed:
            cancelled, self._cancelled = self._cancelled, set()
        self._remove(cancelled.__contains__)
        return cancelled

    def take_late(self) -> list[Ticket]:
        """Those that have waited too long."""
        now = time.monotonic()
        return self._remove(lambda ticket: now > min(ticket.queue_deadline, ticket.deadline))

    def take_all(self) -> list[Ticket]:
        """Everything that waits."""
        return self._remove(lambda ticket: True)

    def take_fitting(self) -> list[Ticket]:
        """The first ones, as long as there is room for the next. None overtakes another.

        A batch's cache is as wide as its widest row has been, for every row, until the batch is empty. Where a row that has
        left is all that keeps the next one out, the batch is let run empty.
        """
        taken: list[Ticket] = []
        with self._changed:
            if not self._running:
                self._widest, self._renews = 0, False
            while self._waiting and not self._renews and self._fits(self._waiting[0], self._widest):
                ticket = self._waiting.popleft()
                self.free_places -= ticket.samples
                self._widest = max(self._widest, ticket.tokens)
                self._running.add(ticket)
                taken.append(ticket)
            if self._waiting and self._fits(self._waiting[0], max((one.tokens for one in self._running), default=0)):
                self._renews = True
        return taken

    def _fits(self, ticket: Ticket, widest: int) -> bool:
        rows = self.places - self.free_places + ticket.samples
        return rows <= self.places and rows * max(widest, ticket.tokens) <= self.slots

    def give_back(self, ticket: Ticket) -> None:
        """A ticket that was taken has ended: its room is free again."""
        with self._changed:
            self._running.discard(ticket)
            self.free_places += ticket.samples
            ticket.ended = time.monotonic()
            self._seconds += 0.1 * (ticket.ended - (ticket.began or ticket.ended) - self._seconds)

    def retry_after(self) -> int:
        """Seconds after which there may be room: what has lately been measured of answers, for those that wait."""
        rounds = 1 + len(self._waiting) / self.places
        return max(1, min(LONGEST_RETRY, math.ceil(self._seconds * rounds / 2)))

    def _remove(self, chosen: Callable[[Ticket], bool]) -> list[Ticket]:
        with self._changed:
            removed = [ticket for ticket in self._waiting if chosen(ticket)]
            if removed:
                gone = set(removed)
                self._waiting = deque(ticket for ticket in self._waiting if ticket not in gone)
        return removed
