"""The places of a batch: rows begin, join those that are being decoded, and leave."""

import itertools
import time
from collections import deque
from dataclasses import dataclass, field

from specdec.decoding.callbacks import Watch
from specdec.decoding.sequence import Row
from specdec.errors import PluginError
from specdec.interfaces.declarations import Features
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, DraftSession, Target, TargetState
from specdec.interfaces.proposals import DraftStart, Memory


@dataclass(slots=True)
class Run:
    """A batch in flight: rows still decoding, aligned with the rows of `state` and `session`, and those that have ended.

    waiting: rows that begin when others end. size: rows at once. watch: called with each step of each row. memory: what the
    tree builder keeps about the batch. prefill_seconds: of all rows that have begun, first tokens included.
    """

    rows: list[Row]
    ended: list[Row]
    waiting: deque[Row] = field(default_factory=deque)
    size: int | None = None
    state: TargetState | None = None
    session: DraftSession | None = None
    watch: Watch | None = None
    memory: Memory = field(default_factory=Memory)
    prefill_seconds: float = 0.0


class Places:
    """Keeps target state and draft session aligned with a run's rows. features: what the drafter reads of the target."""

    def __init__(self, target: Target, drafter: Drafter, features: Features) -> None:
        self._target = target
        self._drafter = drafter
        self._features = features
        self._scoring, self._drafting = PartGuard("target", target), PartGuard("drafter", drafter)

    def admit(self, run: Run) -> None:
        """Let rows that wait begin where there is room; some end with their first token and make room again."""
        began = time.perf_counter()
        while run.waiting and (run.size is None or len(run.rows) < run.size):
            room = len(run.waiting) if run.size is None else run.size - len(run.rows)
            self._begin(run, [run.waiting.popleft() for _ in range(min(room, len(run.waiting)))])
        run.prefill_seconds += time.perf_counter() - began

    def _begin(self, run: Run, rows: list[Row]) -> None:
        """Prefill rows, once for samples of one prompt that stand side by side, and put them behind those of the run."""
        for row in rows:
            row.began = time.perf_counter()
        samples = [list(some) for _, some in itertools.groupby(rows, key=lambda row: row.request)]
        copies = [len(some) for some in samples]
        with self._scoring:
            prefilled = self._target.prefill([some[0].tokens for some in samples], self._features)
            state = prefilled.state if set(copies) == {1} else self._target.fork(prefilled.state, copies)
        scored = [s for s, count in zip(prefilled.scored, copies, strict=True) for _ in range(count)]
        for row, answer in zip(rows, scored, strict=True):
            token = row.first_token(answer)
            row.emit([token], [answer.logits[0]])
            row.prefill_seconds = row.seconds
        keep = [i for i, row in enumerate(rows) if row.emitted.finish is None]
        run.ended += [row for row in rows if row.emitted.finish is not None]
        if not keep:
            return
        if len(keep) < len(rows):
            with self._scoring:
                self._target.keep(state, keep)
        starts = [DraftStart(tuple(rows[i].tokens[:-1]), rows[i].tokens[-1], scored[i].hidden) for i in keep]
        self._append(run, [rows[i] for i in keep], state, self._open(starts))

    def _append(self, run: Run, rows: list[Row], state: TargetState, session: DraftSession) -> None:
        if not run.rows or run.state is None or run.session is None:
            run.state, run.session = state, session
        else:
            with self._scoring:
                self._target.join(run.state, state)
            with self._drafting:
                run.session.join(session)
        run.rows = [*run.rows, *rows]

    def drop_ended(self, run: Run, keep: list[int]) -> None:
        """Let the rows that have ended leave; keep: the places of the others."""
        if len(keep) == len(run.rows):
            return
        run.ended += [row for row in run.rows if row.emitted.finish is not None]
        run.rows = [run.rows[i] for i in keep]
        if run.state is not None:
            with self._scoring:
                self._target.keep(run.state, keep)
        if run.session is not None:
            with self._drafting:
                run.session.keep(keep)

    def _open(self, starts: list[DraftStart]) -> DraftSession:
        with self._drafting:
            session = self._drafter.open(starts)
        if not isinstance(session, DraftSession):
            raise PluginError(f"drafter '{self._drafter.name}' opened {type(session).__name__}, not a DraftSession")
        return session
