"""Answers for training, given by the target itself."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.decoding.detokenizer import text_of
from specdec.decoding.requests import Request
from specdec.decoding.sequence import prepare
from specdec.errors import SpecdecError, SpecError
from specdec.files.jsonl import append_lines
from specdec.interfaces.parts import Target
from specdec.interfaces.results import Generation
from specdec.interfaces.target_identity import target_name
from specdec.interfaces.text_codec import ChatFormat
from specdec.sampling.params import SamplingParams
from specdec.training.conversations import Messages
from specdec.training.failed_questions import Failures, failures_path
from specdec.training.resumable_jsonl import Check, check_target, resumed

QUEUE = 4
"""Batches of questions that are written down together."""

PROBE = ({"role": "user", "content": "a"},)
"""A conversation that shows whether there is a chat template with the variables that a plan gives."""


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """How questions are answered.

    Attributes:
        max_new_tokens: Of an answer.
        temperature: 0 is greedy.
        batch: Questions at once.
        seed: Question i is answered with seed + i, whatever batch it is in.
        chat_template_kwargs: Variables of the chat template.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    batch: int = 32
    seed: int = 0
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def request(self, question: Messages, number: int) -> Request:
        """How question `number` is asked."""
        return Request(
            question,
            max_new_tokens=self.max_new_tokens,
            sampling=SamplingParams(temperature=self.temperature),
            seed=self.seed + number,
            chat_template_kwargs=self.chat_template_kwargs,
        )

    def settings(self, number: int) -> dict[str, Any]:
        """What a line says of how question `number` was answered; what came later only where it is used."""
        settings: dict[str, Any] = {"temperature": self.temperature, "max_new_tokens": self.max_new_tokens}
        settings["seed"] = self.seed + number
        return {**settings, **({"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {})}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A question that the target cannot be asked. number: from 0; reason: why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A question whose answer could not be decoded. number: from 0; reason: why."""

    number: int
    reason: str


def distill(
    decoder: Decoder,
    questions: Sequence[Messages],
    plan: DistillPlan,
    path: Path,
    on_skip: Callable[[Skipped], None] = lambda skipped: None,
    on_fail: Callable[[Failed], None] = lambda failed: None,
) -> Iterator[int]:
    """Answers to the questions, appended to `path` a few batches at a time; yields how many are done.

    Within these, the next question begins when an answer ends: they differ in length. A question that does not fit into the
    context, or that the chat template refuses, is left out and handed to `on_skip`. One whose answer cannot be decoded goes to
    `on_fail` and, with the reason, into a file beside the answers (`failures_path`); a later call asks it again. An answer's
    text has its special tokens, so that it encodes back to what was said; only the stop token at its end is left out.

    Resumes what an earlier call with the same questions, plan and target began: a line cut short is dropped. Raises SpecError
    for a file that holds anything else, which is left as it is.
    """
    _check_target(decoder.target, plan)
    target = target_name(decoder.target.facts.description)
    answered: set[int] = set()
    failures = Failures(failures_path(path), questions, plan)
    with resumed(path, _checker(questions, plan, target, answered)):
        first = max(answered, default=-1) + 1
        for number in sorted(set(range(first)) - answered - failures.reasons.keys()):
            if _askable(decoder, questions, plan, number, on_skip) is not None:
                raise SpecError(f"{path}: has no answer to question {number + 1}, but to later ones; give another name")
        todo = sorted({*range(first, len(questions)), *failures.reasons} - answered)
        for start in range(0, len(todo), plan.batch * QUEUE):
            some = todo[start : start + plan.batch * QUEUE]
            asked = {number: request for number in some if (request := _askable(decoder, questions, plan, number, on_skip))}
            ended = _answers(decoder, asked, plan.batch)
            failures.add(ended.failures)
            append_lines(path, _records(decoder.target, questions, plan, target, ended.answers), only_ascii=True)
            failures.settle(ended.answers)
            for number, reason in ended.failures.items():
                on_fail(Failed(number, reason))
            if ended.error is not None:
                raise ended.error
            yield len(questions) - len(todo) + start + len(some)


@dataclass(frozen=True, slots=True)
class _Ended:
    """By number, the answers and the reasons why there is none. error: what ended the batch before all were done."""

    answers: Mapping[int, Generation]
    failures: Mapping[int, str]
    error: SpecdecError | None = None


def _answers(decoder: Decoder, asked: Mapping[int, Request], batch_size: int) -> _Ended:
    """Those of questions by number; where the batch breaks off, those before the first question that has not ended."""
    failures = dict[int, str]()
    answers: Sequence[Generation | None]
    try:
        batch = decoder.start([*asked.values()], batch_size=batch_size, keeps_going=True)
        while batch.sequences:
            decoder.step(batch)
    except SpecdecError as error:
        first = [*takewhile(lambda answer: answer is not None, error.finished)]
        if len(first) < len(error.finished):
            error.args = (f"question {[*asked][len(first)] + 1}, up to which answers are kept: {error}",)
        return _Ended(dict(zip(asked, first, strict=False)), {}, error)
    for place, (number, sequence) in enumerate(zip(asked, batch.everyone, strict=True)):
        if sequence.failure is not None:
            failures[number] = str(sequence.failure).removeprefix(f"prompts[{place}], ")
    try:
        answers = decoder.answers(batch)
    except SpecdecError as error:
        answers = error.finished
    return _Ended({n: answer for n, answer in zip(asked, answers, strict=True) if answer is not None}, failures)


def _records(
    target: Target,
    questions: Sequence[Messages],
    plan: DistillPlan,
    name: str,
    answers: Mapping[int, Generation],
) -> list[dict[str, Any]]:
    """Lines of the answers to questions, by number."""
    records = []
    for number, answer in answers.items():
        said = {"role": "assistant", "content": _said(target, answer)}
        record = {"messages": [*questions[number], said], **plan.settings(number)}
        records.append({**record, "finish": answer.finish_reason, "target": name})
    return records


def _askable(
    decoder: Decoder, questions: Sequence[Messages], plan: DistillPlan, number: int, on_skip: Callable[[Skipped], None]
) -> Request | None:
    """The request of a question, or None for one that cannot be asked."""
    request = plan.request(questions[number], number)
    try:
        _, room, _ = prepare(request, decoder.target, decoder.sampling)
        if room < 1:
            raise SpecError(f"it fills the context of {decoder.target.facts.max_positions} tokens: no room for an answer")
    except SpecError as error:
        on_skip(Skipped(number, str(error).removeprefix("prompt: ")))
        return None
    return request


def _check_target(target: Target, plan: DistillPlan) -> None:
    """Raise for what no question could change: no tokenizer, no chat template, or no such variable of it."""
    if target.codec is None:
        raise SpecError("a target without a tokenizer gives no texts to learn from")
    try:
        target.codec.chat(PROBE, ChatFormat(plan.chat_template_kwargs))
    except SpecdecError:
        raise
    except Exception:
        pass


def _said(target: Target, answer: Generation) -> str:
    if target.codec is None:
        return ""
    return text_of(target.codec, answer.tokens, stop_ids=target.facts.stop_ids, skip_special_tokens=False)


def questions_of(conversations: Iterator[Messages]) -> list[Messages]:
    """What was asked first in each conversation, a system's words included; each question once, in order."""
    seen: dict[str, Messages] = {}
    for messages in conversations:
        opening = []
        for message in messages:
            if message["role"] == "assistant":
                break
            opening.append(message)
        seen.setdefault(json.dumps(opening), opening)
    return [opening for opening in seen.values() if opening]


def _checker(questions: Sequence[Messages], plan: DistillPlan, target: str, answered: set[int]) -> Check:
    """Enters the questions that lines answer, each once and as this plan answers it; refuses any other line.

    Those that failed at first may stand behind later ones.
    """

    def check(record: Any, where: str, place: int) -> None:
        said, settings = record["messages"][:-1], {"chat_template_kwargs": {}, **record}
        number = settings["seed"] - plan.seed
        for name in ("temperature", "max_new_tokens", "chat_template_kwargs"):
            if settings[name] != (wanted := getattr(plan, name)):
                raise SpecError(f"{where}: was answered with {name} {settings[name]}, not {wanted}; give another name")
        if number not in range(len(questions)) or number in answered or said != questions[number]:
            if place < len(questions) and said == questions[place]:
                seeds = f"seed {settings['seed']}, not {plan.seed + place}"
                raise SpecError(f"{where}: was answered with {seeds}; give another name")
            raise SpecError(f"{where}: answers another question than these; give another name, or the same questions")
        answered.add(number)
        check_target(record, where, target)

    return check
