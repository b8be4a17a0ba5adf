"""A sequence's answer as events: what has been added to it since they were last asked for."""

from collections.abc import Callable

from specdec.decoding.callbacks import StreamEvent
from specdec.decoding.sequence import Sequence
from specdec.interfaces.results import Generation


class SequenceStream:
    """The events of one sequence, asked for between steps: after the first token, and after each step or several."""

    __slots__ = ("_depths", "_records", "_sequence", "_sources")

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._sources: list[int] = []
        self._depths: list[int] = []
        self._records = 0

    @property
    def has_news(self) -> bool:
        """Whether tokens have been added since the last event."""
        return len(self._sources) < len(self._sequence.emitted.tokens)

    def event(self, answer: Callable[[Sequence], Generation]) -> StreamEvent:
        """What is new. answer: gives the answer of a sequence that has ended, for the last event."""
        sequence = self._sequence
        emitted, seen = sequence.emitted, len(self._sources)
        new = tuple(emitted.tokens[seen:])
        if not seen and emitted.tokens:
            self._add((-1,))
        for record in sequence.records[self._records :]:
            self._add(record.sources)
        self._records = len(sequence.records)
        places = emitted.new_pieces()
        pieces = tuple((text, self._sources[token]) for text, token in places)
        return StreamEvent(
            tokens=new,
            sources=tuple(self._sources[seen:]),
            text="".join(text for text, _ in pieces),
            pieces=pieces,
            record=sequence.records[-1] if sequence.records else None,
            generation=answer(sequence) if emitted.finish is not None else None,
            depths=tuple(self._depths[token] for _, token in places),
            logprobs=tuple(sequence.logprobs[seen:]),
        )

    def _add(self, sources: tuple[int, ...]) -> None:
        self._sources += sources
        self._depths += [depth if source >= 0 else 0 for depth, source in enumerate(sources, 1)]
