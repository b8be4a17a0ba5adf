"""Engines that somebody else runs, as contenders: each prompt by itself, timed from ids to ids."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from specdec.bench.contender import Contender, Outcome, Task, Timed
from specdec.sampling.params import SamplingParams

Engine: TypeAlias = Callable[[SamplingParams], Callable[[Sequence[int], int, int], Sequence[int]]]
"""For a sampling, what answers (prompt ids, number of tokens, seed) with ids."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines by the names that results call them. What they draft and accept is not known: they have times only."""

    by_name: Mapping[str, Engine] = field(default_factory=dict)

    @property
    def contenders(self) -> list[Contender]:
        """One prompt at a time: an engine batches requests that come together, and these do not."""
        return [Contender(name, _Asked(engine).answer, max_batch=1) for name, engine in self.by_name.items()]

    def describe(self) -> dict[str, Any]:
        """For the header of a results file."""
        return {name: {"engine": name} for name in self.by_name}


@dataclass(frozen=True, slots=True)
class _Asked:
    engine: Engine

    def answer(self, task: Task) -> Timed:
        """Raises SpecError where the engine cannot be reached."""
        ask = self.engine(task.sampling)
        began = time.perf_counter()
        answers = [tuple(ask(prompt, task.max_new_tokens, seed)) for prompt, seed in zip(task.prompts, task.seeds, strict=True)]
        return Timed(tuple(map(Outcome, answers)), time.perf_counter() - began)
