"""The decode loop: calls the parts in order, keeps the batch, knows no mathematics."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.chance import Coins, seeded
from specdec.distributions import Sampling
from specdec.errors import PluginError, SpecError
from specdec.exchange import Memory
from specdec.growth import Declared, Grower
from specdec.guarding import PartGuard
from specdec.interfaces import Drafter, DraftSession, DraftStart, Target, TargetState, TreeBuilder, Verifier
from specdec.proposals import checked_verdict
from specdec.records import PHASES, Committed, Generation, Scored, StepRecord, Verdict
from specdec.requests import Request, Row, open_rows, requests_of
from specdec.tree import DraftTree
from specdec.warp import TargetDists
from specdec.watching import StepView, Watch

__all__ = ["Declared", "Decoder", "Run", "StreamEvent"]


@dataclass(slots=True)
class Run:
    """A batch in flight: rows still decoding, aligned with the rows of `state` and `session`, and those that have ended.

    watch: called with each step of each row. memory: what the tree builder keeps about the batch.
    """

    rows: list[Row]
    ended: list[Row]
    state: TargetState | None = None
    session: DraftSession | None = None
    watch: Watch | None = None
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What one step added to an answer.

    sources: by token, the drafter it came from, -1 for the target. record: None for the token of the prefill.
    generation: with the last event, the finished answer.
    """

    tokens: tuple[int, ...]
    sources: tuple[int, ...]
    text: str
    record: StepRecord | None
    generation: Generation | None


class Decoder:
    """A composed decoder. It may run any number of batches, one after another or interleaved; they share no state."""

    def __init__(
        self,
        *,
        target: Target,
        drafter: Drafter,
        builder: TreeBuilder,
        verifier: Verifier,
        declared: Declared,
        sampling: Sampling,
        name: str = "decoder",
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.drafter = drafter
        self.builder = builder
        self.verifier = verifier
        self.declared = declared
        self.sampling = sampling
        self._on_step = on_step
        self._request_numbers = itertools.count()
        self._grower = Grower(target=target, drafter=drafter, builder=builder, declared=declared)
        self._scoring, self._drafting = PartGuard("target", target), PartGuard("drafter", drafter)
        self._verifying = PartGuard("verifier", verifier)

    def generate(self, prompts: Any, **options: Any) -> list[Generation]:
        """Answers to a batch of prompts, in order; with n > 1 the samples of a prompt stand side by side.

        prompts: a list of texts, id lists, conversations (lists of {"role", "content"}) or Requests.
        options: any field of `Request`, for all prompts; `seed` may also be a list, one for each prompt.
        Raises SpecError for a request that cannot be served, before anything runs.
        """
        run = self.start(requests_of(prompts, **options))
        while run.rows:
            self.step(run)
        return [self._generation(row) for row in sorted(run.ended, key=lambda row: row.number)]

    def stream(self, prompt: Any, *, watch: Watch | None = None, **options: Any) -> Iterator[StreamEvent]:
        """The events of one answer, step by step. Options as for `generate`; n, where it is given, is 1."""
        if options.get("n", 1) != 1:
            raise SpecError(f"n: got {options['n']!r}; a stream has one answer: use generate, or a stream for each sample")
        run = self.start(requests_of([prompt], **{**options, "n": 1}), watch=watch)
        row = (run.rows + run.ended)[0]
        known = 0
        while True:
            done = row.emitted.finish is not None
            record = row.records[-1] if row.records else None
            new = tuple(row.emitted.tokens[known:])
            sources = record.sources if record is not None else (-1,) * len(new)
            yield StreamEvent(new, sources, row.emitted.new_text(), record, self._generation(row) if done else None)
            if done:
                return
            known = len(row.emitted.tokens)
            self.step(run)

    def start(self, requests: Sequence[Request], *, coins: Callable[[int], Coins] = seeded, watch: Watch | None = None) -> Run:
        """Prefill the batch and draw each sequence's first token. `coins` makes the two streams from a request's key."""
        rows, copies = open_rows(
            requests, target=self.target, sampling=self.sampling, numbers=self._request_numbers, coins=coins
        )
        run = Run([], [row for row in rows if row.emitted.finish is not None], watch=watch)
        if not copies:
            return run
        live = [row for row in rows if row.emitted.finish is None]
        began = time.perf_counter()
        prompts = [live[first].tokens for first in itertools.accumulate([0, *copies[:-1]])]
        with self._scoring:
            prefilled = self.target.prefill(prompts, self.declared.drafter.features)
            state = prefilled.state if set(copies) == {1} else self.target.fork(prefilled.state, copies)
        scored = [s for s, count in zip(prefilled.scored, copies, strict=True) for _ in range(count)]
        for row, answer in zip(live, scored, strict=True):
            token = row.first_token(answer)
            row.emit([token], [answer.logits[0]])
            row.prefill_seconds = time.perf_counter() - began
        keep = [i for i, row in enumerate(live) if row.emitted.finish is None]
        run.rows, run.state = live, state
        if keep:
            run.session = self._open(
                [DraftStart(tuple(live[i].tokens[:-1]), live[i].tokens[-1], scored[i].hidden) for i in keep]
            )
        self._drop_ended(run, keep, session_is_current=True)
        return run

    def step(self, run: Run) -> list[StepRecord]:
        """One draft, one target forward, one verification for every live row; rows that end leave `run.rows`."""
        if not run.rows or run.state is None or run.session is None:
            return []
        clock = [time.perf_counter()]
        trees = self._grower.grow(run.rows, run.session, run.memory)
        clock.append(time.perf_counter())
        with self._scoring:
            scored = self.target.score(run.state, trees)
        clock.append(time.perf_counter())
        verified = [self._verify(row, tree, s) for row, tree, s in zip(run.rows, trees, scored, strict=True)]
        clock.append(time.perf_counter())
        committed = [
            _commit(row, tree, verdict, s) for row, tree, (verdict, _), s in zip(run.rows, trees, verified, scored, strict=True)
        ]
        rows, keep = run.rows, [i for i, row in enumerate(run.rows) if row.emitted.finish is None]
        paths = [v.path if row.emitted.finish is None else None for row, (v, _) in zip(rows, verified, strict=True)]
        with self._scoring:
            self.target.commit(run.state, paths)
        self._drop_ended(run, keep, session_is_current=False)
        if keep:
            with self._drafting:
                run.session.observe([committed[i] for i in keep], [scored[i] for i in keep])
        clock.append(time.perf_counter())
        seconds = {phase: after - before for phase, (before, after) in zip(PHASES, itertools.pairwise(clock), strict=True)}
        records = []
        for row, tree, (verdict, p), done in zip(rows, trees, verified, committed, strict=True):
            records.append(_record(tree, verdict, done, len(rows), seconds, p.fallbacks))
            row.record(records[-1])
            if self._on_step is not None:
                self._on_step(records[-1])
            if run.watch is not None:
                run.watch(StepView(row.number, tree, verdict, p, records[-1]))
        return records

    def _drop_ended(self, run: Run, keep: list[int], *, session_is_current: bool) -> None:
        if len(keep) == len(run.rows):
            return
        run.ended += [row for row in run.rows if row.emitted.finish is not None]
        run.rows = [run.rows[i] for i in keep]
        if run.state is not None:
            with self._scoring:
                self.target.keep(run.state, keep)
        if run.session is not None and not session_is_current:
            with self._drafting:
                run.session.keep(keep)

    def _open(self, starts: list[DraftStart]) -> DraftSession:
        with self._drafting:
            session = self.drafter.open(starts)
        if not isinstance(session, DraftSession):
            raise PluginError(f"drafter '{self.drafter.name}' opened {type(session).__name__}, not a DraftSession")
        return session

    def _verify(self, row: Row, tree: DraftTree, scored: Scored) -> tuple[Verdict, TargetDists]:
        p = row.warp.dists(scored.logits, row.tokens, tree)
        with self._verifying:
            verdict = self.verifier.verify(tree, p, row.coins.target)
        return checked_verdict(verdict, tree, self.target.facts.vocab_size, type(self.verifier).name), p

    def _generation(self, row: Row) -> Generation:
        return row.generation(self.declared.verifier.guarantee)


def _commit(row: Row, tree: DraftTree, verdict: Verdict, scored: Scored) -> Committed:
    nodes = (0, *verdict.path)
    tokens = [*(tree.tokens[n] for n in verdict.path), verdict.next_token]
    taken = row.emit(tokens, [scored.logits[n] for n in nodes] if row.wants_logprobs else [])
    return Committed(tuple(tokens[:taken]), nodes[:taken], scored.hidden.rows(list(nodes[:taken])), tree)


def _record(
    tree: DraftTree, verdict: Verdict, done: Committed, batch_size: int, seconds: dict[str, float], fallbacks: int
) -> StepRecord:
    emitted = len(done.tokens)
    accepted = min(len(verdict.path), emitted)
    tested = len(verdict.path) + (not verdict.all_accepted)
    origins = [tree.source[n] if tree.source else 0 for n in verdict.path]
    return StepRecord(
        drafted=tree.num_drafted,
        depth=tree.max_depth,
        tested=min(tested, emitted),
        accepted=accepted,
        committed=emitted,
        emitted=done.tokens,
        sources=tuple([*origins, -1][:emitted]),
        batch_size=batch_size,
        seconds=seconds,
        fallbacks=fallbacks,
    )
