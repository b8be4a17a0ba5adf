"""Spec-Bench's answer files: read, compared and written, so that its data and its plots go on working.

*Source: github.com/hemingkx/Spec-Bench, evaluation/eval.py; MT-bench and EAGLE write the same but for `accept_lengths`.*
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from specdec.bench.measurements import Cell, Measurement, Results
from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.files.jsonl import parse_json, text_lines

MAX_CHARACTERS = 10_000_000
"""Of a first line that is looked at to tell what a file is."""


@dataclass(frozen=True, slots=True)
class SpecBenchAnswer:
    """A question's first choice, turn by turn. accept_lengths: tokens of each target forward, over all turns."""

    question_id: int | str
    category: str
    model_id: str
    turns: tuple[str, ...]
    new_tokens: tuple[int, ...]
    wall_time: tuple[float, ...]
    decoding_steps: tuple[int, ...]
    accept_lengths: tuple[int, ...]


def read_answers(path: Path) -> list[SpecBenchAnswer]:
    """The answers of a file. Raises SpecError by line."""
    answers = [_answer(line, where) for where, line in text_lines(path)]
    if not answers:
        raise SpecError(f"{path}: no answers")
    return answers


def is_answer_file(path: Path) -> bool:
    """Whether the first line looks like one of Spec-Bench's answers."""
    try:
        with path.open(encoding="utf-8") as file:
            first = parse_json(file.readline(MAX_CHARACTERS))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "choices" in first


def _answer(line: str, where: str) -> SpecBenchAnswer:
    try:
        record = parse_json(line)
        choice = record["choices"][0]
        steps = choice.get("decoding_steps", choice.get("idxs", []))
        answer = SpecBenchAnswer(
            question_id=record["question_id"],
            category=record.get("category", ""),
            model_id=record.get("model_id", ""),
            turns=tuple(choice["turns"]),
            new_tokens=tuple(map(int, choice["new_tokens"])),
            wall_time=tuple(map(float, choice["wall_time"])),
            decoding_steps=tuple(map(int, steps)),
            accept_lengths=tuple(map(int, choice.get("accept_lengths", []))),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise SpecError(f"{where}: no answer of Spec-Bench: {type(error).__name__}: {error}") from error
    if not len(answer.turns) == len(answer.new_tokens) == len(answer.wall_time):
        raise SpecError(f"{where}: turns, new_tokens and wall_time differ in length")
    counts = (*answer.new_tokens, *answer.decoding_steps, *answer.accept_lengths)
    if any(count < 0 for count in counts) or not all(0 <= seconds < math.inf for seconds in answer.wall_time):
        raise SpecError(f"{where}: counts and wall_time are to be at least 0, and finite")
    texts = (answer.category, answer.model_id, *answer.turns)
    if not isinstance(answer.question_id, int | str) or not all(isinstance(text, str) for text in texts):
        raise SpecError(f"{where}: question_id is to be a number or a text, category, model_id and turns texts")
    return answer


def write_answers(results: Results, cell: Cell, contender: str, path: Path) -> int:
    """One contender's answers in one setting, a line a question, by id; how many there are.

    Wall time of questions that were answered together, or in one queue, is shared out by tokens.
    """
    started = _seconds_since_1970(results.header.provenance.get("started"))
    chosen = [m for m in results.measurements if m.cell == cell and m.contender == contender]
    lines = [json.dumps(record, ensure_ascii=False) for record in _records(chosen, contender, started)]
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def _seconds_since_1970(moment: Any) -> float:
    """0 for a moment that is unknown."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _records(chosen: Iterable[Measurement], contender: str, started: float) -> list[Mapping[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    lists = ("turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
    for m in sorted(chosen, key=lambda m: (m.group, m.turn)):
        for answer in m.answers:
            record = records.setdefault(
                answer.question,
                {
                    "question_id": answer.question if answer.number is None else answer.number,
                    "category": answer.category,
                    "answer_id": hashlib.sha256(f"{contender}:{answer.question}".encode()).hexdigest()[:22],
                    "model_id": contender,
                    "choices": [{"index": 0, **{name: [] for name in lists}}],
                    "tstamp": started,
                },
            )
            choice, counts = record["choices"][0], answer.counts
            choice["turns"].append(answer.text or "")
            choice["decoding_steps"].append(len(answer.tokens) if counts is None else counts.forwards)
            choice["new_tokens"].append(len(answer.tokens))
            choice["wall_time"].append(m.seconds * len(answer.tokens) / max(1, m.num_tokens))
            choice["accept_lengths"] += [] if counts is None else counts.steps
    return list(records.values())
