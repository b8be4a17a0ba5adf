"""One HTTP request's side of its tickets: what the decode thread has sent, and nobody has read yet."""

import asyncio
from collections.abc import AsyncIterator

from specdec.interfaces.results import Generation
from specdec.serving.api_error import failed
from specdec.serving.ticket import Ticket, Update


class Exchange:
    """Collects updates of tickets in the event loop's thread.

    A client that reads slowly makes nothing wait: what is not read yet is bounded by the length of the answers.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self._pending: list[Update] = []
        self._arrived = asyncio.Event()

    @property
    def choices(self) -> int:
        """Answers that are expected."""
        return sum(ticket.samples for ticket in self.tickets)

    def put(self, update: Update) -> None:
        """Called in the event loop's thread."""
        self._pending.append(update)
        self._arrived.set()

    async def updates(self) -> AsyncIterator[list[Update]]:
        """What has arrived, until every answer has ended. Raises ApiError for one that fails."""
        open_choices = self.choices
        while open_choices:
            await self._arrived.wait()
            self._arrived.clear()
            news, self._pending = self._pending, []
            for update in news:
                if isinstance(update.news, BaseException):
                    raise failed(update.news)
                open_choices -= update.ends
            yield news

    async def answers(self) -> list[Generation]:
        """All answers, in order. Raises ApiError where one fails."""
        found: dict[int, Generation] = {}
        async for news in self.updates():
            for update in news:
                if not isinstance(update.news, BaseException) and update.news.generation is not None:
                    found[choice_of(update)] = update.news.generation
        return [found[index] for index in sorted(found)]


def choice_of(update: Update) -> int:
    """Which choice of its response an update is about."""
    return update.ticket.first_choice + (update.sample or 0)
