"""One decoder, its running batch, and the tickets in it."""

import logging
import time
import traceback
from collections.abc import Collection, Sequence

from specdec.decoding.batching import DecodeBatch
from specdec.decoding.decoder import Decoder
from specdec.decoding.sequence_stream import SequenceStream
from specdec.errors import SpecdecError
from specdec.interfaces.results import StepRecord
from specdec.serving.ticket import Ticket, Update

LOG = logging.getLogger("specdec.serving")


class Lane:
    """Only the decode thread calls it."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.batch = self._empty()
        self.tickets: list[Ticket] = []

    def _empty(self) -> DecodeBatch:
        return self.decoder.start([], keeps_going=True)

    def begin(self, tickets: Sequence[Ticket]) -> list[Update]:
        """Prefill tickets together; where that fails, one by one, so that each has only its own error."""
        now = time.monotonic()
        for ticket in tickets:
            ticket.began = now
        error = self._try_to_begin(tickets)
        if error is None:
            return []
        lost = [] if self._is_aligned() else self.fail(error)
        if len(tickets) > 1:
            return [*lost, *(update for ticket in tickets for update in self.begin([ticket]))]
        return [*lost, Update(tickets[0], None, error)]

    def _try_to_begin(self, tickets: Sequence[Ticket]) -> Exception | None:
        try:
            sequences = self.decoder.join(self.batch, [ticket.request for ticket in tickets])
        except Exception as error:
            self.batch.waiting.clear()
            log(error)
            return error
        for ticket in tickets:
            ticket.sequences, sequences = sequences[: ticket.samples], sequences[ticket.samples :]
            ticket.readers = [SequenceStream(sequence) for sequence in ticket.sequences]
            self.tickets.append(ticket)
        return None

    def _is_aligned(self) -> bool:
        """Whether the target's state still has a row for each sequence."""
        return self.batch.state is None or len(self.batch.state.lengths) == len(self.batch.sequences)

    def step(self) -> tuple[list[StepRecord], list[Update]]:
        """One step of every running sequence. What fails beyond one sequence ends them all; the next batch begins anew."""
        try:
            return self.decoder.step(self.batch), []
        except Exception as error:
            log(error)
            return [], self.fail(error)

    def fail(self, error: Exception) -> list[Update]:
        """End everything that runs with this error."""
        updates = [Update(ticket, None, error) for ticket in self.tickets]
        self.batch, self.tickets = self._empty(), []
        return updates

    def news(self) -> list[Update]:
        """What has been added since the last call; tickets that have ended leave."""
        updates: list[Update] = []
        now = time.monotonic()
        for ticket in self.tickets:
            if ticket.first_token is None:
                ticket.first_token = now
            for sample, sequence in enumerate(ticket.sequences):
                if sample in ticket.reported or (sequence.is_live and not (ticket.streams and ticket.readers[sample].has_news)):
                    continue
                if not sequence.is_live:
                    ticket.reported.add(sample)
                if sequence.failure is not None:
                    log(sequence.failure)
                    updates.append(Update(ticket, sample, sequence.failure))
                else:
                    updates.append(Update(ticket, sample, ticket.readers[sample].event(self.decoder.answer)))
        self.tickets = [ticket for ticket in self.tickets if len(ticket.reported) < ticket.samples]
        self.batch.ended.clear()
        return updates

    def drop(self, tickets: Collection[Ticket]) -> list[Ticket]:
        """Take those of these tickets that run out of the batch."""
        dropped = [ticket for ticket in self.tickets if ticket in tickets]
        if dropped:
            self.decoder.cancel(self.batch, [sequence for ticket in dropped for sequence in ticket.sequences])
            self.tickets = [ticket for ticket in self.tickets if ticket not in tickets]
            self.batch.ended.clear()
        return dropped


def log(error: BaseException) -> None:
    """What happened and where; not the message, which may quote a prompt, unless debugging was asked for."""
    if isinstance(error, SpecdecError) and error.__cause__ is None:
        LOG.warning("a request failed: %s", type(error).__name__)
    else:
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        where = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames[-8:]))
        LOG.error("a request failed: %s at %s", type(error.__cause__ or error).__name__, where)
    LOG.debug("its error", exc_info=error)
