"""Who takes part in a benchmark, and how one batch of prompts is put to a decoder of ours."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from specdec.bench.measurements import Counts
from specdec.decoding.callbacks import StepInfo, draft_levels
from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.interfaces.results import PHASES, StepRecord
from specdec.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts that are answered together, as ids. seeds: one for each. batch_size: how many at once; None: all."""

    prompts: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one prompt. text: None where the contender leaves the decoding of ids to others."""

    tokens: tuple[int, ...]
    text: str | None = None
    counts: Counts | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """A task done: wall seconds from ids to ids, and what they went to."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    first_token_seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


Answering: TypeAlias = Callable[[Task], Timed]


@dataclass(frozen=True, slots=True)
class Contender:
    """A name and the way it answers. max_batch: prompts at once that it can take, None for any number."""

    name: str
    answer: Answering
    max_batch: int | None = None


class _Tally:
    """Counts of one answer, step by step."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self._offered: list[int] = []
        self._accepted: list[int] = []

    def add(self, info: StepInfo) -> None:
        self.records.append(info.record)
        for level in draft_levels(info):
            missing = level.num_children - len(self._offered)
            self._offered += [0] * missing
            self._accepted += [0] * missing
            for rank in range(level.num_children):
                self._offered[rank] += 1
            if level.rank is not None:
                self._accepted[level.rank] += 1

    def counts(self) -> Counts:
        records = self.records
        depth = max((record.tested for record in records), default=0)
        return Counts(
            forwards=len(records),
            committed=sum(record.committed for record in records),
            drafted=sum(record.drafted for record in records),
            accepted=sum(record.accepted for record in records),
            tested_at=tuple(sum(record.tested > level for record in records) for level in range(depth)),
            accepted_at=tuple(sum(record.accepted > level for record in records) for level in range(depth)),
            offered_at_rank=tuple(self._offered),
            accepted_at_rank=tuple(self._accepted),
            steps=tuple(record.committed for record in records),
        )


def run_task(decoder: Decoder, task: Task) -> Timed:
    """Decode a task. Above the decoder's own work there is the counting, some microseconds a step."""
    tallies = [_Tally() for _ in task.prompts]
    requests = [
        Request(prompt, max_new_tokens=task.max_new_tokens, seed=seed, sampling=task.sampling)
        for prompt, seed in zip(task.prompts, task.seeds, strict=True)
    ]
    phases = dict.fromkeys(("prefill", *PHASES), 0.0)
    wait = synchroniser(decoder.target.facts.device)
    began = time.perf_counter()
    run = decoder.start(requests, batch_size=task.batch_size, step_callback=lambda info: tallies[info.sequence].add(info))
    wait()
    first = time.perf_counter() - began
    while run.sequences:
        for phase, seconds in decoder.step(run)[0].seconds.items():
            phases[phase] += seconds
    wait()
    seconds = time.perf_counter() - began
    phases["prefill"] = max(first, run.prefill_seconds)
    phases["rest"] = max(0.0, seconds - sum(phases.values()))
    rows = sorted(run.ended, key=lambda row: row.number)
    outcomes = (
        Outcome(tuple(row.emitted.tokens), row.emitted.text, tally.counts()) for row, tally in zip(rows, tallies, strict=True)
    )
    return Timed(tuple(outcomes), seconds, first, phases)


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until the device has done all that it was given; nothing to wait for on a CPU."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None
