"""The decode loop: calls the parts in order, keeps the batch, knows no mathematics."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.decoding.batching import Places, Run
from specdec.decoding.callbacks import StepView, Watch
from specdec.decoding.contract_checks import checked_verdict
from specdec.decoding.drafting import Declared, Grower
from specdec.decoding.requests import Request, check_batch_size, requests_of
from specdec.decoding.sequence import Row, open_rows
from specdec.errors import SpecError
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, Target, TreeBuilder, Verifier
from specdec.interfaces.results import PHASES, Committed, Generation, Scored, StepRecord, Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import RequestRng, seeded
from specdec.trees.draft_tree import DraftTree

__all__ = ["Declared", "Decoder", "Run", "StreamEvent"]


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
        sampling: SamplingParams,
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
        self._places = Places(target, drafter, declared.drafter.features)
        self._scoring, self._drafting = PartGuard("target", target), PartGuard("drafter", drafter)
        self._verifying = PartGuard("verifier", verifier)

    def generate(self, prompts: Any, *, batch_size: int | None = None, **options: Any) -> list[Generation]:
        """Answers to prompts, in order; with n > 1 the samples of a prompt stand side by side.

        prompts: a list of texts, id lists, conversations (lists of {"role", "content"}) or Requests.
        batch_size: sequences that are decoded at once, each of which makes way for the next when it ends; None: all of them.
        options: any field of `Request`, for all prompts; `seed` may also be a list, one for each prompt.
        Raises SpecError for a request that cannot be served, before anything runs.
        """
        run = self.start(requests_of(prompts, **options), batch_size=batch_size)
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

    def start(
        self,
        requests: Sequence[Request],
        *,
        batch_size: int | None = None,
        rng_for: Callable[[int], RequestRng] = seeded,
        watch: Watch | None = None,
    ) -> Run:
        """Prefill the batch and draw each sequence's first token. `rng_for` makes the two streams from a request's key.

        batch_size: rows at once; the others wait. None: no row waits.
        """
        check_batch_size(batch_size)
        rows = open_rows(requests, target=self.target, sampling=self.sampling, numbers=self._request_numbers, rng_for=rng_for)
        waiting = deque(row for row in rows if row.emitted.finish is None)
        run = Run([], [row for row in rows if row.emitted.finish is not None], waiting, batch_size, watch=watch)
        self._places.admit(run)
        return run

    def step(self, run: Run) -> list[StepRecord]:
        """One draft, one target forward, one verification for every live row; rows that end make way for those that wait."""
        if not run.rows or run.state is None or run.session is None:
            return []
        clock = [time.perf_counter()]
        trees = self._grower.grow(run.rows, run.session, run.memory, queue=bool(run.waiting))
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
        self._places.drop_ended(run, keep)
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
        self._places.admit(run)
        return records

    def _verify(self, row: Row, tree: DraftTree, scored: Scored) -> tuple[Verdict, TargetProbs]:
        p = row.warper.target_probs(scored.logits, row.tokens, tree)
        with self._verifying:
            verdict = self.verifier.verify(tree, p, row.rng.target)
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
