"""One prompt on its way through the decode thread."""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from specdec.decoding.callbacks import StreamEvent
from specdec.decoding.requests import Request
from specdec.decoding.sequence import Sequence
from specdec.decoding.sequence_stream import SequenceStream
from specdec.interfaces.results import StepRecord


@dataclass(slots=True, eq=False)
class Ticket:
    """A request as the decode thread sees it.

    Attributes:
        model: Which of the server's decoders answers.
        request: What is asked: ids, and processors in place of a response format.
        tokens: Of prompt and answer together, at most, by sample.
        streams: Whether every step is reported, or only the end.
        owner: Who is told of its updates. first_choice: which of the owner's choices its first sample is.
        deadline, queue_deadline: Until when it must have ended and begun, by `time.monotonic`.
        began, first_token, ended: When that happened; None: not yet.
        sequences: Of its samples, once it has begun.
        readers: By sample, what has not been reported yet. reported: samples whose end has been.
    """

    model: str
    request: Request
    tokens: int
    streams: bool
    deadline: float
    queue_deadline: float
    owner: Any = None
    first_choice: int = 0
    submitted: float = field(default_factory=time.monotonic)
    began: float | None = None
    first_token: float | None = None
    ended: float | None = None
    sequences: list[Sequence] = field(default_factory=list)
    readers: list[SequenceStream] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)

    @property
    def samples(self) -> int:
        """Sequences that it has, or will have."""
        return self.request.n

    @property
    def slots(self) -> int:
        """Tokens that its KV cache holds at most."""
        return self.tokens * self.samples


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What is new about one sample of a ticket: an event, or the error that ended it. sample None: that ended them all."""

    ticket: Ticket
    sample: int | None
    news: StreamEvent | BaseException

    @property
    def ends(self) -> bool:
        """Whether nothing comes after it for this sample."""
        return not isinstance(self.news, StreamEvent) or self.news.generation is not None


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What rounds of the decode thread came to. steps: the records of each step. begun: tickets that were prefilled."""

    updates: SequenceOf[Update] = ()
    steps: SequenceOf[SequenceOf[StepRecord]] = ()
    begun: SequenceOf[Ticket] = ()


Tickets: TypeAlias = SequenceOf[Ticket]
