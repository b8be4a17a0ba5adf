"""The batch and its scheduling: sequences begin, join those that are being decoded, and leave."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from specdec.decoding.callbacks import StepCallback
from specdec.decoding.sequence import Sequence
from specdec.errors import PluginError, SpecdecError, SpecError
from specdec.interfaces.declarations import Features
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, DraftSession, Target, TargetState
from specdec.interfaces.proposals import DraftStart, Memory
from specdec.interfaces.results import Generation

T = TypeVar("T")


@dataclass(slots=True)
class DecodeBatch:
    """A batch in flight.

    Attributes:
        everyone: All its sequences, in order.
        size: Sequences at once; None: all.
        keeps_going: Whether a sequence that fails ends alone, and the error is left for the end.
        sequences: Those that are being decoded, aligned with the rows of `state` and `session`.
        ended: Those that are finished or have failed.
        waiting: Those that begin when others end.
        step_callback: Called with each step of each sequence.
        queue: Whether requests wait that are not part of the batch yet.
        memory: What the tree builder keeps about the batch.
        prefill_seconds: Of all that have begun, first tokens included.
    """

    everyone: tuple[Sequence, ...]
    size: int | None = None
    keeps_going: bool = False
    sequences: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(init=False)
    waiting: deque[Sequence] = field(init=False)
    state: TargetState | None = None
    session: DraftSession | None = None
    step_callback: StepCallback | None = None
    queue: bool = False
    memory: Memory = field(default_factory=Memory)
    prefill_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.ended = [sequence for sequence in self.everyone if not sequence.is_live]
        self.waiting = deque(sequence for sequence in self.everyone if sequence.is_live)

    @property
    def has_queue(self) -> bool:
        """Whether anything waits."""
        return self.queue or bool(self.waiting)

    def attempt(self, sequence: Sequence, work: Callable[[], T]) -> T | None:
        """What `work` for one sequence gives; None where it fails, which ends the sequence, and the batch keeps going.

        None also for a sequence that has failed before, for which nothing more is done.
        """
        if sequence.failure is not None:
            return None
        try:
            return work()
        except SpecdecError as error:
            sequence.fail(error)
            if not self.keeps_going:
                raise
            return None

    @contextmanager
    def bringing_answers(self, answer: Callable[[Sequence], Generation]) -> Iterator[None]:
        """Let an error take along what is finished."""
        try:
            yield
        except SpecdecError as error:
            error.finished = tuple(answer(one) if one.is_finished else None for one in self.everyone)
            raise

    def raise_failures(self) -> None:
        """Raise the first failure, and say how many more there are."""
        failures = [sequence.failure for sequence in self.everyone if sequence.failure is not None]
        if len(failures) > 1:
            failures[0].args = (f"{failures[0]}; {len(failures) - 1} more of {len(self.everyone)} answers failed",)
        if failures:
            raise failures[0]


class BatchScheduler:
    """Keeps target state and draft session aligned with a batch's sequences. features: what is read of the target."""

    def __init__(self, target: Target, drafter: Drafter, features: Features) -> None:
        self._target = target
        self._drafter = drafter
        self._features = features
        self._scoring, self._drafting = PartGuard("target", target), PartGuard("drafter", drafter)

    def admit(self, batch: DecodeBatch) -> None:
        """Let sequences that wait begin where there is room; some end with their first token and make room again."""
        began = time.perf_counter()
        while batch.waiting and (batch.size is None or len(batch.sequences) < batch.size):
            room = len(batch.waiting) if batch.size is None else batch.size - len(batch.sequences)
            self._begin(batch, [batch.waiting.popleft() for _ in range(min(room, len(batch.waiting)))])
        batch.prefill_seconds += time.perf_counter() - began

    def _begin(self, batch: DecodeBatch, sequences: list[Sequence]) -> None:
        """Prefill sequences, once for samples of one prompt that stand side by side, and put them behind those of the batch."""
        for sequence in sequences:
            sequence.began = time.perf_counter()
        samples = [list(some) for _, some in itertools.groupby(sequences, key=lambda sequence: id(sequence.shared))]
        copies = [len(some) for some in samples]
        with self._scoring:
            prefilled = self._target.prefill([some[0].tokens for some in samples], self._features)
            state = prefilled.state if set(copies) == {1} else self._target.fork(prefilled.state, copies)
        scored = [s for s, count in zip(prefilled.scored, copies, strict=True) for _ in range(count)]
        for sequence, answer in zip(sequences, scored, strict=True):
            batch.attempt(sequence, partial(sequence.begin, answer))
        keep = [i for i, sequence in enumerate(sequences) if sequence.is_live]
        batch.ended += [sequence for sequence in sequences if not sequence.is_live]
        if not keep:
            return
        if len(keep) < len(sequences):
            with self._scoring:
                self._target.keep(state, keep)
        starts = [DraftStart(tuple(sequences[i].tokens[:-1]), sequences[i].tokens[-1], scored[i].hidden) for i in keep]
        self._append(batch, [sequences[i] for i in keep], state, self._open(starts))

    def _append(self, batch: DecodeBatch, sequences: list[Sequence], state: TargetState, session: DraftSession) -> None:
        if not batch.sequences or batch.state is None or batch.session is None:
            batch.state, batch.session = state, session
        else:
            with self._scoring:
                self._target.join(batch.state, state)
            with self._drafting:
                batch.session.join(session)
        batch.sequences = [*batch.sequences, *sequences]

    def cancel(self, batch: DecodeBatch, sequences: list[Sequence]) -> None:
        """Let sequences leave before their end, between steps, whether they are being decoded or wait."""
        for sequence in sequences:
            sequence.emitted.cancel()
        left = [sequence for sequence in batch.waiting if not sequence.is_live]
        batch.ended += left
        batch.waiting = deque(sequence for sequence in batch.waiting if sequence.is_live)
        self.drop_ended(batch, [row for row, sequence in enumerate(batch.sequences) if sequence.is_live])

    def drop_ended(self, batch: DecodeBatch, keep: list[int]) -> None:
        """Let the sequences that have ended leave; keep: the rows of the others."""
        if len(keep) == len(batch.sequences):
            return
        batch.ended += [sequence for sequence in batch.sequences if not sequence.is_live]
        batch.sequences = [batch.sequences[i] for i in keep]
        if batch.state is not None:
            with self._scoring:
                self._target.keep(batch.state, keep)
        if batch.session is not None:
            with self._drafting:
                batch.session.keep(keep)

    def _open(self, starts: list[DraftStart]) -> DraftSession:
        with self._drafting:
            session = self._drafter.open(starts)
        if not isinstance(session, DraftSession):
            raise PluginError(f"drafter '{self._drafter.name}' opened {type(session).__name__}, not a DraftSession")
        return session


def check_batch_size(batch_size: Any) -> None:
    """Raise SpecError for a number of sequences that cannot be decoded at once."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise SpecError(f"batch_size: got {batch_size!r}; expected the number of sequences decoded at once, 1 or more")
