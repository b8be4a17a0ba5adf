"""The decode loop: calls the parts in order, keeps the batch, knows no mathematics."""

import itertools
import time
from collections import abc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from specdec.decoding.batching import BatchScheduler, DecodeBatch, check_batch_size
from specdec.decoding.callbacks import StepCallback, StepInfo, StreamEvent
from specdec.decoding.contract_checks import checked_verdict
from specdec.decoding.drafting import DraftRunner
from specdec.decoding.requests import Request, refuse_uncovered, requests_of
from specdec.decoding.sequence import Sequence, open_sequences
from specdec.decoding.sequence_stream import SequenceStream
from specdec.decoding.step_outcome import Outcome, commit, step_record
from specdec.decoding.structured_output import Grammars, refuse_formats
from specdec.errors import SpecError
from specdec.interfaces.declarations import Reads
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, DraftSession, Target, TargetState, TreeBuilder, Verifier
from specdec.interfaces.results import PHASES, CertificateStamp, Generation, Scored, StepRecord
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import RequestRng, seeded
from specdec.trees.draft_tree import DraftTree


class Decoder:
    """A composed decoder. It may run any number of batches, one after another or interleaved; they share no state."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        builder: TreeBuilder,
        verifier: Verifier,
        *,
        sampling: SamplingParams | None = None,
        name: str = "decoder",
        on_step: Callable[[StepRecord], None] | None = None,
        certificate: CertificateStamp | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.drafter = drafter
        self.builder = builder
        self.verifier = verifier
        self.sampling = SamplingParams() if sampling is None else sampling
        self.certificate = certificate
        self._on_step = on_step
        self._request_numbers = itertools.count()
        self._runner = DraftRunner(target=target, drafter=drafter, builder=builder)
        self._scheduler = BatchScheduler(target, drafter, verifier.declaration.beside(drafter.declaration.features))
        self._scoring, self._drafting = PartGuard("target", target), PartGuard("drafter", drafter)
        self._verifying = PartGuard("verifier", verifier)
        self._grammars = Grammars(target)
        self._reads_branches = verifier.declaration.reads is Reads.TREE

    def __repr__(self) -> str:
        """One line: the name, the four parts, the temperature, and the guarantee."""
        parts = f"drafter={type(self.drafter).name!r}, tree={type(self.builder).name!r}, verifier={type(self.verifier).name!r}"
        return (
            f"Decoder({self.name!r}, target={self.target.facts.description!r}, {parts}, "
            f"temperature={self.sampling.temperature:g}, guarantee={self.verifier.declaration.guarantee.value!r})"
        )

    def replace(
        self,
        *,
        target: Target | None = None,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        sampling: SamplingParams | None = None,
        name: str | None = None,
    ) -> "Decoder":
        """A decoder with other parts, or other sampling, and the rest of this one but its certificate; None: as it is."""
        return Decoder(
            self.target if target is None else target,
            self.drafter if drafter is None else drafter,
            self.builder if builder is None else builder,
            self.verifier if verifier is None else verifier,
            sampling=self.sampling if sampling is None else sampling,
            name=self.name if name is None else name,
            on_step=self._on_step,
        )

    def generate(self, prompts: Any, *, batch_size: int | None = None, **options: Any) -> list[Generation]:
        """Answers to prompts, in order; with n > 1 the samples of a prompt stand side by side.

        prompts: a text, ids, a conversation (a list of {"role", "content"}) or a Request, or a list of these; a tensor of one
        or two dimensions, or a tokenizer's encoding, whose rows are prompts. One prompt gives a list of one answer.
        batch_size: sequences that are decoded at once, each of which makes way for the next when it ends; None: all of them.
        options: any field of `Request`, for all prompts; `seed` may also be a list, one for each prompt. Keys of `sampling`
        may be given by themselves (`temperature=0.7`): they are laid over the decoder's.

        Raises SpecError for a request that cannot be served, before anything runs. Where one fails later (an unusable row of
        logits, a logits processor), the others are answered first; the error says which prompt and step it was, and brings
        the answers in its `finished`.
        """
        batch = self.start(requests_of(prompts, self.sampling, **options), batch_size=batch_size, keeps_going=True)
        while batch.sequences:
            self.step(batch)
        return self.answers(batch)

    def answers(self, batch: DecodeBatch) -> list[Generation]:
        """Those of a batch that has ended, in order. Raises the first failure of one that kept going, with all answers."""
        with batch.bringing_answers(self._generation):
            batch.raise_failures()
        return [self._generation(sequence) for sequence in batch.everyone]

    def stream(self, prompt: Any, *, step_callback: StepCallback | None = None, **options: Any) -> Iterator[StreamEvent]:
        """The events of one answer, step by step. Options as for `generate`; n, where it is given, is 1."""
        if options.get("n", 1) != 1:
            raise SpecError(f"n: got {options['n']!r}; a stream has one answer: use generate, or a stream for each sample")
        batch = self.start(requests_of([prompt], self.sampling, **{**options, "n": 1}), step_callback=step_callback)
        answer = SequenceStream((batch.sequences + batch.ended)[0])
        while True:
            event = answer.event(self.answer)
            yield event
            if event.generation is not None:
                return
            self.step(batch)

    def start(
        self,
        requests: abc.Sequence[Request],
        *,
        batch_size: int | None = None,
        keeps_going: bool = False,
        rng_for: Callable[[int], RequestRng] = seeded,
        step_callback: StepCallback | None = None,
    ) -> DecodeBatch:
        """Prefill the batch and draw each sequence's first token. `rng_for` makes the two streams from a request's key.

        batch_size: sequences at once; the others wait. None: none waits. keeps_going: a sequence that fails ends alone, and
        `answers` raises its error when all have ended.
        """
        check_batch_size(batch_size)
        sequences = self._opened(requests, rng_for)
        batch = DecodeBatch(tuple(sequences), batch_size, keeps_going=keeps_going, step_callback=step_callback)
        with batch.bringing_answers(self._generation):
            self._scheduler.admit(batch)
        return batch

    def join(self, batch: DecodeBatch, requests: abc.Sequence[Request]) -> list[Sequence]:
        """Let requests join a batch in flight, between steps: prefill those for which there is room, and draw first tokens.

        Returns their sequences, which `answers` leaves out: `answer` has that of each. One that fails ends alone, with its
        `failure`, where the batch `keeps_going`. Raises SpecError for a request that cannot be served, and changes nothing.
        """
        sequences = self._opened(requests, seeded)
        batch.waiting.extend(sequence for sequence in sequences if sequence.is_live)
        self._scheduler.admit(batch)
        return sequences

    def cancel(self, batch: DecodeBatch, sequences: abc.Sequence[Sequence]) -> None:
        """Take sequences out of a batch, between steps; `answer` has what each has said by then."""
        self._scheduler.cancel(batch, [sequence for sequence in sequences if sequence.is_live])

    def answer(self, sequence: Sequence) -> Generation:
        """That of a sequence that has ended. Raises its failure."""
        if sequence.failure is not None:
            raise sequence.failure
        return self._generation(sequence)

    def _opened(self, requests: abc.Sequence[Request], rng_for: Callable[[int], RequestRng]) -> list[Sequence]:
        refuse_uncovered(requests, self.sampling, self.certificate)
        refuse_formats(requests, self.verifier)
        return open_sequences(
            requests,
            target=self.target,
            sampling=self.sampling,
            numbers=self._request_numbers,
            rng_for=rng_for,
            branches_for=self.verifier.name if self._reads_branches else None,
            grammars=self._grammars,
        )

    def step(self, batch: DecodeBatch) -> list[StepRecord]:
        """One draft, one target forward, one verification for every live sequence; those that end make way for others.

        Returns the records of those that have not failed, in order.
        """
        if not batch.sequences or batch.state is None or batch.session is None:
            return []
        with batch.bringing_answers(self._generation):
            return self._step(batch, batch.state, batch.session)

    def _step(self, batch: DecodeBatch, state: TargetState, session: DraftSession) -> list[StepRecord]:
        clock = [time.perf_counter()]
        trees = self._runner.grow(batch.sequences, session, batch.memory, queue=batch.has_queue, attempt=batch.attempt)
        clock.append(time.perf_counter())
        with self._scoring:
            scored = self.target.score(state, trees)
        clock.append(time.perf_counter())
        triples = list(zip(batch.sequences, trees, scored, strict=True))
        verified = [batch.attempt(sequence, partial(self._verify, sequence, tree, s)) for sequence, tree, s in triples]
        clock.append(time.perf_counter())
        committed = [
            None if outcome is None else batch.attempt(sequence, partial(commit, sequence, tree, outcome[0], s))
            for (sequence, tree, s), outcome in zip(triples, verified, strict=True)
        ]
        live = [i for i, sequence in enumerate(batch.sequences) if sequence.is_live]
        paths = [outcome[0].path if outcome is not None and i in live else None for i, outcome in enumerate(verified)]
        with self._scoring:
            self.target.commit(state, paths)
        self._scheduler.drop_ended(batch, live)
        news = [done for i in live if (done := committed[i]) is not None]
        if news:
            with self._drafting:
                session.observe(news, [scored[i] for i in live])
        clock.append(time.perf_counter())
        seconds = {phase: after - before for phase, (before, after) in zip(PHASES, itertools.pairwise(clock), strict=True)}
        records = [
            self._recorded(batch, sequence, tree, outcome, step_record(tree, outcome, done, len(triples), seconds))
            for (sequence, tree, _), outcome, done in zip(triples, verified, committed, strict=True)
            if outcome is not None and done is not None
        ]
        self._scheduler.admit(batch)
        return records

    def _recorded(
        self, batch: DecodeBatch, sequence: Sequence, tree: DraftTree, outcome: Outcome, record: StepRecord
    ) -> StepRecord:
        sequence.record(record)
        if self._on_step is not None:
            self._on_step(record)
        if batch.step_callback is not None:
            texts = sequence.emitted.token_texts(record.committed)
            batch.step_callback(StepInfo(sequence.number, tree, *outcome, record, texts))
        return record

    def _verify(self, sequence: Sequence, tree: DraftTree, scored: Scored) -> Outcome:
        p = sequence.warper.target_probs(
            scored.logits, sequence.tokens, tree, by_branch=self._reads_branches, features=scored.hidden.last
        )
        with self._verifying:
            verdict = self.verifier.verify(tree, p, sequence.rng.target)
        checked = checked_verdict(verdict, tree, self.target.facts.vocab_size, type(self.verifier).name)
        p.settle(checked.path)
        return checked, p

    def _generation(self, sequence: Sequence) -> Generation:
        return sequence.generation(self.verifier.declaration.guarantee, self.certificate)
