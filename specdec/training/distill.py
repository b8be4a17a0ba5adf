"""Conversations for training, answered by the target itself: to given questions, or to questions that it invents."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from specdec.decoder import Decoder
from specdec.distributions import Sampling
from specdec.errors import SpecError, TargetMismatch
from specdec.records import Generation
from specdec.training.conversations import Messages

MARK = "\u2063question\u2063"

START = b'{"messages": '
"""How every line of answers begins."""


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """max_new_tokens: of an answer. seed: question i is answered with seed + i, whatever batch it is in."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    batch: int = 32
    seed: int = 0


def distill(decoder: Decoder, questions: Sequence[Messages], plan: DistillPlan, path: Path) -> Iterator[int]:
    """Answers to the questions, appended to `path` batch by batch; yields how many are done.

    Goes on where an earlier call with the same questions and plan was stopped: a line cut short is dropped. Raises SpecError
    for a file that holds anything else, which is left as it is.
    """
    done = _answered(path, questions, plan)
    sampling = Sampling(temperature=plan.temperature)
    with _appending(path) as file:
        for start in range(done, len(questions), plan.batch):
            some = questions[start : start + plan.batch]
            seeds = [plan.seed + start + offset for offset in range(len(some))]
            answers = decoder.generate(some, max_new_tokens=plan.max_new_tokens, sampling=sampling, seed=seeds)
            for question, answer in zip(some, answers, strict=True):
                file.write(json.dumps(_record(question, answer, plan)) + "\n")
            file.flush()
            yield start + len(some)


def invent(decoder: Decoder, tokenizer: Any, count: int, plan: DistillPlan) -> list[Messages]:
    """Questions that the target makes up at temperature 1, given nothing but the start of a user's turn.

    *Source: arXiv 2406.08464.* Empty ones and repeats are left out, so there may be fewer than `count`.
    """
    opening = user_opening(tokenizer)
    questions: dict[str, None] = {}
    for start in range(0, count, plan.batch):
        seeds = [plan.seed + start + offset for offset in range(min(plan.batch, count - start))]
        prompts = [list(opening) for _ in seeds]
        drawn = decoder.generate(prompts, max_new_tokens=plan.max_new_tokens, sampling=Sampling(temperature=1.0), seed=seeds)
        questions.update((text, None) for answer in drawn if (text := (answer.text or "").strip()))
    return [[{"role": "user", "content": text}] for text in questions]


def user_opening(tokenizer: Any) -> list[int]:
    """The ids that the chat template writes before the first words of a user. Raises TargetMismatch if they cannot be told."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    before, mark, _ = text.partition(MARK)
    if not mark:
        raise TargetMismatch("the chat template rewrites what users say, so where their words begin cannot be told")
    return list(tokenizer(before, add_special_tokens=False)["input_ids"])


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


def _record(question: Messages, answer: Generation, plan: DistillPlan) -> Mapping[str, Any]:
    if answer.text is None:
        raise SpecError("a target without a tokenizer gives no texts to learn from")
    said = {"role": "assistant", "content": answer.text}
    return {"messages": [*question, said], "temperature": plan.temperature, "finish": answer.finish_reason}


def _appending(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be written to: {error.strerror}") from error


def _answered(path: Path, questions: Sequence[Messages], plan: DistillPlan) -> int:
    """Questions whose answers the file has; an unfinished last line is cut off."""
    if not path.exists():
        return 0
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].splitlines()
    for number, line in enumerate(lines, start=1):
        _check_answer(line, f"{path}:{number}", questions[number - 1] if number <= len(questions) else None, plan)
    if whole < len(content):
        if not lines and not START.startswith(content[: len(START)]):
            raise SpecError(f"{path}: is there and holds no answers of this command; give another name")
        with path.open("r+b") as file:
            file.truncate(whole)
    return len(lines)


def _check_answer(line: bytes, where: str, question: Messages | None, plan: DistillPlan) -> None:
    """Raise SpecError unless the line answers this question at the plan's temperature."""
    try:
        record = json.loads(line)
        said, temperature = record["messages"][:-1], record["temperature"]
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{where}: is there and is no answer of this command; give another name") from error
    if said != question:
        raise SpecError(f"{where}: answers another question than these; give another name, or the same questions")
    if temperature != plan.temperature:
        raise SpecError(f"{where}: was answered at temperature {temperature}, not {plan.temperature}; give another name")
