"""The benchmark itself: every contender answers every task, turn by turn, the order rotating from task to task."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specdec.bench.chat_prompts import Prompter, Said, has_room
from specdec.bench.contender import Contender, Task, Timed
from specdec.bench.contenders import Lineup, Loaded
from specdec.bench.measurements import PLAIN, Answer, Cell, LoadedTarget, Measurement
from specdec.bench.memory import watch_memory
from specdec.bench.prompts import Question
from specdec.bench.results import ResultsFile
from specdec.bench.settings import BenchSettings
from specdec.errors import SpecdecError
from specdec.interfaces.text_codec import ChatFormat
from specdec.sampling.keyed_noise import request_key

WARMUP_TOKENS = 16
"""Tokens of an answer that warms up."""

Progress: TypeAlias = Callable[[int, int, str], None]
"""(measurements done, planned, what is being done)."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Questions that are answered together, by their place among all questions."""

    number: int
    questions: tuple[tuple[int, Question], ...]

    @property
    def num_turns(self) -> int:
        return max(len(question.turns) for _, question in self.questions)


class Bench:
    """A benchmark that is being run; what the file holds already is not measured again."""

    def __init__(
        self,
        settings: BenchSettings,
        questions: Sequence[Question],
        lineup: Lineup,
        file: ResultsFile,
        progress: Progress = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._questions = questions
        self._lineup = lineup
        self._file = file
        self._progress = progress
        self._known = {measurement.key: measurement for measurement in file.done}
        self._failures: list[SpecdecError] = []
        self._done = 0
        self._planned = self._count()

    def run(self) -> None:
        """Measure all that is missing.

        A contender that cannot answer some questions is measured on the others, like all contenders; the first such error is
        raised at the end.
        """
        for dtype in self._settings.dtypes or (None,):
            self._progress(self._done, self._planned, "loading models")
            loaded = self._lineup.load(dtype)
            facts = loaded.target.facts
            own = str(facts.dtype).removeprefix("torch.")
            self._file.load(LoadedTarget(dtype, facts.description, own, str(facts.device)))
            prompter = Prompter(
                loaded.target.codec,
                chat=self._settings.chat,
                chat_format=ChatFormat(self._settings.chat_template_kwargs),
                stop_ids=loaded.target.facts.stop_ids,
            )
            for cell in self._settings.cells(dtype):
                _Sitting(self, cell, loaded, prompter).run()
            del loaded
            gc.collect()
        if self._failures:
            first = self._failures[0]
            first.args = (f"{first}; measurements left out: {len(self._failures)}, all others are in the file",)
            raise first

    def fail(self, contender: Contender, asked: Sequence[tuple[int, Question]], error: SpecdecError) -> None:
        """Leave a measurement out, and raise its error when all others are made."""
        keys = [question.key for _, question in asked]
        which = f"question {keys[0]}" if len(keys) == 1 else f"questions {keys[0]} to {keys[-1]}"
        error.args = (f"{contender.name}, {which}: {error}",)
        self._failures.append(error)

    def groups(self, size: int) -> list[_Group]:
        """The questions that share a batch of `size` places, together or one after another."""
        numbered, count = list(enumerate(self._questions)), size * self._settings.queue
        parts = (tuple(numbered[begin : begin + count]) for begin in range(0, len(numbered), count))
        return [_Group(number, part) for number, part in enumerate(parts)]

    def _count(self) -> int:
        tasks = {size: sum(group.num_turns for group in self.groups(size)) for size in self._settings.batch_sizes}
        per_dtype = sum(tasks[size] for size in self._settings.batch_sizes) * len(self._settings.temperatures)
        return per_dtype * len(self._lineup.names) * max(1, len(self._settings.dtypes))

    def step(self, words: str, count: int = 1) -> None:
        """Tell that `count` more measurements are done, or not to be made."""
        self._done += count
        self._progress(self._done, self._planned, words)

    @property
    def settings(self) -> BenchSettings:
        """How it is run."""
        return self._settings

    def known(self, cell: Cell, group: int, turn: int, name: str) -> Measurement | None:
        """What the file has of this already."""
        return self._known.get((cell, group, turn, name))

    def keep(self, measurement: Measurement) -> None:
        """Write it down."""
        self._file.add(measurement)


@dataclass(slots=True)
class _Sitting:
    """One cell: all groups, after a warm-up."""

    bench: Bench
    cell: Cell
    loaded: Loaded
    prompter: Prompter
    tasks: int = 0
    warm: set[str] = field(default_factory=set)

    def run(self) -> None:
        absent = len(self.loaded.contenders) - len(self._contenders())
        for group in self.bench.groups(self.cell.batch_size):
            self._run_group(group)
            self.bench.step(self.cell.words, absent * group.num_turns)

    def _contenders(self) -> list[Contender]:
        size = self.cell.batch_size
        return [c for c in self.loaded.contenders if c.max_batch is None or size <= c.max_batch]

    def _run_group(self, group: _Group) -> None:
        said: dict[int, tuple[Said, ...]] = {number: () for number, _ in group.questions}
        contenders = self._contenders()
        for turn in range(group.num_turns):
            asked = [(n, q) for n, q in group.questions if len(q.turns) > turn and len(said[n]) == turn]
            prompts = {n: self.prompter.ids(q, said[n]) for n, q in asked}
            room, facts = self.bench.settings.max_new_tokens, self.loaded.target.facts
            # Contenders would be cut differently by the end of the context.
            asked = [(n, q) for n, q in asked if has_room(q, len(prompts[n]), room, facts)]
            if not asked:
                self.bench.step(self.cell.words, len(contenders))
                continue
            task = self._task(asked, [prompts[n] for n, _ in asked], turn)
            for contender in _rotated(contenders, self.tasks):
                try:
                    measured = self._measured(contender, task, group.number, turn, asked)
                except SpecdecError as error:
                    self.bench.fail(contender, asked, error)
                    continue
                if contender.name == PLAIN:
                    for (number, _), answer in zip(asked, measured.answers, strict=True):
                        said[number] = (*said[number], self.prompter.said(answer.tokens))
                self.bench.step(f"{self.cell.words}: {contender.name}")
            self.tasks += 1

    def _task(self, asked: Sequence[tuple[int, Question]], prompts: Sequence[tuple[int, ...]], turn: int) -> Task:
        settings = self.bench.settings
        seeds = tuple(request_key(settings.seed, number * 1000 + turn) for number, _ in asked)
        distribution = settings.sampling(self.cell.temperature, None)
        return Task(tuple(prompts), seeds, settings.max_new_tokens, distribution, self.cell.batch_size)

    def _measured(
        self, contender: Contender, task: Task, group: int, turn: int, asked: Sequence[tuple[int, Question]]
    ) -> Measurement:
        if (known := self.bench.known(self.cell, group, turn, contender.name)) is not None:
            return known
        if contender.name not in self.warm:
            short = replace(task, max_new_tokens=min(WARMUP_TOKENS, task.max_new_tokens))
            for _ in range(self.bench.settings.warmup):
                contender.answer(short)
            self.warm.add(contender.name)
        peak = watch_memory(self.loaded.target.facts.device)
        timed = contender.answer(task)
        measurement = Measurement(
            cell=self.cell,
            contender=contender.name,
            group=group,
            turn=turn,
            seconds=timed.seconds,
            first_token_seconds=timed.first_token_seconds,
            answers=tuple(self._answers(task, timed, turn, asked)),
            phases=timed.phases,
            peak_bytes=peak(),
        )
        self.bench.keep(measurement)
        return measurement

    def _answers(self, task: Task, timed: Timed, turn: int, asked: Sequence[tuple[int, Question]]) -> Iterator[Answer]:
        for (_, question), prompt, outcome in zip(asked, task.prompts, timed.outcomes, strict=True):
            text = self.prompter.text(outcome.tokens) if outcome.text is None else outcome.text
            yield Answer(
                question=question.key,
                turn=turn,
                category=question.category,
                prompt_tokens=len(prompt),
                tokens=outcome.tokens,
                text=text,
                counts=outcome.counts,
                number=question.number,
            )


def _rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    start = by % len(contenders)
    return [*contenders[start:], *contenders[:start]]
