"""Answers for training, given by the target itself."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.interfaces.results import Generation
from specdec.sampling.params import SamplingParams
from specdec.training.conversations import Messages
from specdec.training.resumable_jsonl import appending, check_target, known_lines
from specdec.training.target_identity import target_name

QUEUE = 4
"""Batches of questions that are written down together."""


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """max_new_tokens: of an answer. seed: question i is answered with seed + i, whatever batch it is in."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    batch: int = 32
    seed: int = 0


def distill(decoder: Decoder, questions: Sequence[Messages], plan: DistillPlan, path: Path) -> Iterator[int]:
    """Answers to the questions, appended to `path` a few batches at a time; yields how many are done.

    Within these, the next question begins when an answer ends: they differ in length.

    Goes on where an earlier call with the same questions, plan and target was stopped: a line cut short is dropped. Raises
    SpecError for a file that holds anything else, which is left as it is.
    """
    target = target_name(decoder.target.facts.description)
    done = _answered(path, questions, plan, target)
    sampling = SamplingParams(temperature=plan.temperature)
    with appending(path) as file:
        for start in range(done, len(questions), plan.batch * QUEUE):
            some = questions[start : start + plan.batch * QUEUE]
            seeds = [plan.seed + start + offset for offset in range(len(some))]
            answers = decoder.generate(
                some, batch_size=plan.batch, max_new_tokens=plan.max_new_tokens, sampling=sampling, seed=seeds
            )
            for question, answer, seed in zip(some, answers, seeds, strict=True):
                file.write(json.dumps(_record(question, answer, _settings(plan, seed), target)) + "\n")
            file.flush()
            yield start + len(some)


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


def _settings(plan: DistillPlan, seed: int) -> dict[str, float]:
    return {"temperature": plan.temperature, "max_new_tokens": plan.max_new_tokens, "seed": seed}


def _record(question: Messages, answer: Generation, settings: Mapping[str, float], target: str) -> Mapping[str, Any]:
    if answer.text is None:
        raise SpecError("a target without a tokenizer gives no texts to learn from")
    said = {"role": "assistant", "content": answer.text}
    return {"messages": [*question, said], **settings, "finish": answer.finish_reason, "target": target}


def _answered(path: Path, questions: Sequence[Messages], plan: DistillPlan, target: str) -> int:
    """Questions whose answers the file has, each as this plan answers it. Raises SpecError for any other line."""

    def check(record: Any, where: str, number: int) -> None:
        said, settings = record["messages"][:-1], _settings(plan, plan.seed + number)
        if number >= len(questions) or said != questions[number]:
            raise SpecError(f"{where}: answers another question than these; give another name, or the same questions")
        for name, wanted in settings.items():
            if record[name] != wanted:
                raise SpecError(f"{where}: was answered with {name} {record[name]}, not {wanted}; give another name")
        check_target(record, where, target)

    return len(known_lines(path, check))
