"""One sequence while it is decoded."""

from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from torch import Tensor

from specdec.decoding.requests import Request, naming_prompt, prompt_ids
from specdec.decoding.stopping import Emitted, StopRules
from specdec.decoding.structured_output import Grammars
from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.declarations import Guarantee
from specdec.interfaces.parts import Target
from specdec.interfaces.proposals import Memory
from specdec.interfaces.results import CertificateStamp, Generation, Scored, StepRecord, TokenLogprobs
from specdec.sampling.keyed_noise import mix, request_key
from specdec.sampling.logits_warper import LogitsProcessor, LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.sampling.processor_state import processors_by_sequence
from specdec.sampling.rng import RequestRng
from specdec.trees.draft_tree import root_only


@dataclass(slots=True)
class Sequence:
    """One sequence. tokens: prompt and answer; the last is the root, not yet in the target's cache. memory: the builder's.

    number: its place among all sequences; request: that of its request, which its samples share. began: at its prefill.
    failure: what ended it without an answer. shared: one object for the samples of a request, which share a prefill.
    """

    number: int
    request: int
    sample_index: int
    seed: int
    prompt_length: int
    tokens: list[int]
    limit: int
    warper: LogitsWarper
    rng: RequestRng
    emitted: Emitted
    num_logprobs: int | None
    has_siblings: bool = False
    shared: object = field(default_factory=object)
    records: list[StepRecord] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    failure: SpecdecError | None = None

    @property
    def is_live(self) -> bool:
        """Whether it goes on."""
        return self.emitted.finish is None and self.failure is None

    @property
    def is_finished(self) -> bool:
        """Whether it has come to its end, and did not fail."""
        return self.emitted.finish is not None and self.failure is None

    def fail(self, error: SpecdecError) -> None:
        """End with this error, which is made to say where."""
        sample = f", sample {self.sample_index}" if self.has_siblings else ""
        step = f"step {len(self.records) + 1}" if self.emitted.tokens else "first token"
        error.args = (f"prompts[{self.request}]{sample}, {step}: {error}",)
        self.failure = error

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.emitted.tokens)

    @property
    def wants_logprobs(self) -> bool:
        """Whether `emit` needs the raw logits of each token."""
        return self.num_logprobs is not None

    def begin(self, scored: Scored) -> None:
        """Draw and emit the token after the prompt. scored.logits: [1, vocab]."""
        end = len(self.tokens)
        p = self.warper.target_probs(scored.logits, self.tokens, root_only(self.tokens[-1], end - 1))
        self.emit([p.row(0).choose(self.rng.target, end)], [scored.logits[0]])
        self.prefill_seconds = self.seconds

    def emit(self, tokens: abc.Sequence[int], logits: abc.Sequence[Tensor]) -> int:
        """Append tokens up to the end of the sequence; returns how many were taken. logits: [vocab] by token, for logprobs."""
        taken = self.emitted.push(tokens)
        self.tokens += tokens[:taken]
        if self.num_logprobs is not None:
            self.logprobs += [
                _logprobs(row, token, self.num_logprobs) for token, row in zip(tokens[:taken], logits, strict=False)
            ]
        self.seconds = perf_counter() - self.began
        return taken

    def record(self, record: StepRecord) -> None:
        """Append a step."""
        self.records.append(record)
        self.seconds = perf_counter() - self.began

    def generation(self, guarantee: Guarantee, certificate: CertificateStamp | None = None) -> Generation:
        """The finished answer."""
        finish = self.emitted.finish
        return Generation(
            prompt_tokens=tuple(self.tokens[: self.prompt_length]),
            tokens=tuple(self.emitted.tokens),
            text=self.emitted.text,
            finish_reason="length" if finish is None else finish.reason,
            stopped_by=None if finish is None else finish.cause,
            seed=self.seed,
            sample_index=self.sample_index,
            records=tuple(self.records),
            logprobs=tuple(self.logprobs) if self.wants_logprobs else None,
            guarantee=guarantee,
            seconds=self.seconds,
            prefill_seconds=self.prefill_seconds,
            certificate=certificate,
        )


def _logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    row = logits.double().log_softmax(-1)
    best = row.topk(top)
    return TokenLogprobs(token, float(row[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


Prepared: TypeAlias = tuple[abc.Sequence[int], int, SamplingParams]
"""Of a request: the prompt's ids, the most new tokens, the sampling."""


def open_sequences(
    requests: abc.Sequence[Request],
    *,
    target: Target,
    sampling: SamplingParams,
    numbers: Iterator[int],
    rng_for: Callable[[int], RequestRng],
    branches_for: str | None = None,
    grammars: Grammars | None = None,
) -> list[Sequence]:
    """Rows of all samples, side by side. Raises SpecError before anything is changed.

    branches_for: the verifier, where it reads rows off the path that it takes. grammars: the target's, kept between calls.
    """
    prepared, sequences = _prepared(requests, target, sampling), list[Sequence]()
    processors = iter(_processors(requests, prepared, target, grammars, branches_for))
    for place, (request, (prompt, limit, options), number) in enumerate(zip(requests, prepared, numbers, strict=False)):
        own = request_key(options.seed, number) if request.seed is None else request.seed
        rules, shared = stop_rules(request, limit, target), object()
        for sample in range(request.n):
            key = own if sample == 0 else mix(own, sample) >> 1
            warper = LogitsWarper(options, prompt_length=len(prompt), stop_ids=rules.ids, processors=next(processors))
            sequences.append(
                Sequence(
                    number=len(sequences),
                    request=place,
                    sample_index=sample,
                    seed=key,
                    prompt_length=len(prompt),
                    tokens=list(prompt),
                    limit=limit,
                    warper=warper,
                    rng=rng_for(key),
                    emitted=Emitted(rules, target.codec, skip_special_tokens=request.skip_special_tokens),
                    num_logprobs=request.logprobs,
                    has_siblings=request.n > 1,
                    shared=shared,
                )
            )
    return sequences


def _prepared(requests: abc.Sequence[Request], target: Target, sampling: SamplingParams) -> list[Prepared]:
    """By request: the prompt's ids, the most new tokens, the sampling."""
    prepared: list[Prepared] = []
    for place, request in enumerate(requests):
        with naming_prompt(place if len(requests) > 1 else None):
            prepared.append(prepare(request, target, sampling))
    return prepared


def _processors(
    requests: abc.Sequence[Request],
    prepared: abc.Sequence[Prepared],
    target: Target,
    grammars: Grammars | None,
    branches_for: str | None,
) -> list[tuple[LogitsProcessor, ...]]:
    """What each sequence calls: the request's processors, and then the grammar, so that none allows what it forbids."""
    grammars = Grammars(target) if grammars is None else grammars
    given = [request.processors for request in requests for _ in range(request.n)]
    masks: list[tuple[LogitsProcessor, ...]] = []
    for place, (request, (prompt, limit, _)) in enumerate(zip(requests, prepared, strict=True)):
        ids = stop_rules(request, limit, target).ids
        with naming_prompt(place if len(requests) > 1 else None):
            masks += grammars.masks(request, prompt_length=len(prompt), stop_ids=ids)
    own = processors_by_sequence(given, branches_for=branches_for)
    return [(*called, *mask) for called, mask in zip(own, masks, strict=True)]


def stop_rules(request: Request, limit: int, target: Target) -> StopRules:
    """When an answer to a request ends: the target's own stop tokens and the request's."""
    known = (token for token in target.facts.stop_ids if 0 <= token < target.facts.vocab_size)
    stop_ids = frozenset([*request.stop_ids, *(() if request.ignore_eos else known)])
    stop_sequences = tuple(tuple(stop) for stop in request.stop if not isinstance(stop, str))
    return StopRules(limit, stop_ids, stop_sequences, tuple(stop for stop in request.stop if isinstance(stop, str)))


def prepare(request: Request, target: Target, sampling: SamplingParams) -> tuple[list[int], int, SamplingParams]:
    """Checked prompt ids, the token limit that the context leaves, and the sampling options.

    Raises:
        SpecError: For a request that this target cannot serve.
        TargetMismatch: For a conversation without a chat template.
    """
    facts, options = target.facts, request.sampling if isinstance(request.sampling, SamplingParams) else sampling
    prompt = prompt_ids(request, target.codec)
    if not prompt:
        raise SpecError("the prompt is empty: decoding starts from at least one token")
    stop_sequences = [token for stop in request.stop if not isinstance(stop, str) for token in stop]
    for token in [*prompt, *options.logit_bias, *request.stop_ids, *stop_sequences]:
        if not 0 <= token < facts.vocab_size:
            raise SpecError(f"token {token} is outside the target's vocabulary of {facts.vocab_size}")
    room = request.max_new_tokens
    if facts.max_positions is not None:
        if len(prompt) > facts.max_positions:
            raise SpecError(f"the prompt has {len(prompt)} tokens; the target's context holds {facts.context}")
        room = min(facts.max_positions - len(prompt), room if room is not None else facts.max_positions)
    if room is None:
        raise SpecError("max_new_tokens: this target's context is unbounded, so that a limit is needed")
    if request.max_new_tokens is not None and options.min_new_tokens > request.max_new_tokens:
        raise SpecError(f"min_new_tokens {options.min_new_tokens} exceeds max_new_tokens {request.max_new_tokens}")
    if request.logprobs is not None and request.logprobs > facts.vocab_size:
        raise SpecError(f"logprobs: {request.logprobs} asked for; the vocabulary has {facts.vocab_size}")
    if target.codec is None and any(isinstance(stop, str) for stop in request.stop):
        raise SpecError("stop: this target has no tokenizer, so that only id sequences can stop it")
    return prompt, room, options
