"""Questions from JSON lines, as Spec-Bench, MT-bench, GSM8K and chat data sets write them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.decoding.prompts import ROLES
from specdec.errors import SpecError, did_you_mean
from specdec.files.jsonl import parse_json, text_lines

KEYS = ("turns", "messages", "prompt", "question")
"""Where a line may have its question, looked at in this order."""


@dataclass(frozen=True, slots=True)
class Question:
    """turns: what the user says, one after the other. system: what is said before them. number: the id that the file gives."""

    key: str
    category: str
    turns: tuple[str, ...]
    system: str | None = None
    number: int | str | None = None


@dataclass(frozen=True, slots=True)
class PromptFile:
    """What identifies a file of questions in results: name, hash of its bytes, how many questions were taken."""

    name: str
    sha256: str
    num_questions: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which questions of each file are asked. count: the first so many; turns: the first so many of each."""

    count: int | None = None
    categories: tuple[str, ...] = ()
    turns: int | None = None


def read_questions(paths: Sequence[Path], selection: Selection) -> tuple[list[Question], list[PromptFile]]:
    """The selected questions of all files, in order. Raises SpecError by file and line, and where nothing is left to ask."""
    questions: list[Question] = []
    files: list[PromptFile] = []
    seen: set[str] = set()
    for path in paths:
        found = list(_questions(path))
        seen |= {question.category for question in found}
        wanted = [q for q in found if not selection.categories or q.category in selection.categories][: selection.count]
        files.append(PromptFile(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), len(wanted)))
        questions += [_cut(question, selection.turns) for question in wanted]
    for category in selection.categories:
        if category not in seen:
            raise SpecError(f"no question is of category '{category}'{did_you_mean(category, seen)}")
    if not questions:
        raise SpecError(f"no questions in {', '.join(str(path) for path in paths)}")
    keys = [question.key for question in questions]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SpecError(f"question {twice} is there twice; give each file once, and each question an id of its own")
    return questions, files


def _cut(question: Question, turns: int | None) -> Question:
    return Question(question.key, question.category, question.turns[:turns], question.system, question.number)


def _questions(path: Path) -> Iterator[Question]:
    for where, line in text_lines(path):
        number = int(where.rpartition(":")[2])
        try:
            record = parse_json(line)
        except ValueError as error:
            raise SpecError(f"{where}: no JSON: {error}; expected one object a line") from error
        if not isinstance(record, dict):
            raise SpecError(f"{where}: got {type(record).__name__}, expected an object")
        yield _question(record, path.stem, number, where)


def _question(record: Mapping[str, Any], stem: str, line: int, where: str) -> Question:
    key = next((key for key in KEYS if key in record), None)
    if key is None:
        raise SpecError(f"{where}: no question; expected one of the keys {', '.join(KEYS)}")
    system, turns = _messages(record[key], where) if key == "messages" else (None, _turns(record[key], key, where))
    number = record.get("question_id", record.get("id", f"line-{line}"))
    if not isinstance(number, int | str) or isinstance(number, bool):
        raise SpecError(f"{where}: question_id is {type(number).__name__}; expected a number or a text")
    category = record.get("category", stem)
    if not isinstance(category, str):
        raise SpecError(f"{where}: category is {type(category).__name__}; expected a text")
    return Question(f"{stem}/{number}", category, turns, system, number)


def _turns(value: Any, key: str, where: str) -> tuple[str, ...]:
    turns = value if isinstance(value, list) else [value]
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        expected = "a list of texts" if key == "turns" else "a text"
        raise SpecError(f"{where}: '{key}' is not {expected}, or is empty")
    return tuple(turns)


def _messages(value: Any, where: str) -> tuple[str | None, tuple[str, ...]]:
    """The system's words and the user's turns; what assistants said in the file is not looked at: the model answers itself."""
    if not isinstance(value, list):
        raise SpecError(f"{where}: 'messages' is {type(value).__name__}; expected a list of {{role, content}}")
    system: list[str] = []
    turns: list[str] = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise SpecError(f"{where}: a message without a text as 'content'")
        role = message.get("role")
        if role not in ROLES:
            raise SpecError(f"{where}: role {role!r} is not known; known are {', '.join(ROLES)}")
        if role in ("system", "developer"):
            system.append(message["content"])
        elif role == "user":
            turns.append(message["content"])
    if not turns:
        raise SpecError(f"{where}: nobody with role 'user' says anything")
    return "\n".join(system) or None, tuple(turns)
