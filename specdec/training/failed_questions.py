"""The questions whose answers could not be decoded, kept beside the answers so that a later call asks them again."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from specdec.errors import SpecError
from specdec.files.atomic import write_whole, writing
from specdec.files.jsonl import parse_json, text_lines
from specdec.files.paths import exists
from specdec.training.conversations import Messages


class Plan(Protocol):
    """How questions are answered."""

    @property
    def seed(self) -> int:
        """Question i is answered with seed + i."""

    def settings(self, number: int) -> dict[str, Any]:
        """What a line says of how question `number` was answered."""


def failures_path(answers: Path) -> Path:
    """`own.failed.jsonl` for `own.jsonl`."""
    return answers.with_name(f"{answers.stem}.failed.jsonl")


class Failures:
    """The failures in a file, which is there as long as there are any.

    Attributes:
        path: The file.
        reasons: By number of the question (from 0), why it has no answer. Lines of other questions or plans are not among them.
    """

    def __init__(self, path: Path, questions: Sequence[Messages], plan: Plan) -> None:
        """Raises SpecError for a file with anything else in it."""
        self.path, self._questions, self._plan = path, questions, plan
        self.reasons = dict[int, str]()
        for where, line in text_lines(path) if exists(path) else ():
            try:
                record = parse_json(line)
                number, reason = record["seed"] - plan.seed, record["error"]
                if record == self._line(number, reason):
                    self.reasons[number] = reason
            except IndexError:
                continue  # of a call with more questions
            except (ValueError, KeyError, TypeError) as error:
                raise SpecError(f"{where}: is there and is no failure that `data distill` wrote; give another name") from error

    def add(self, reasons: Mapping[int, str]) -> None:
        """Write down why these have no answer."""
        if reasons:
            self.reasons |= reasons
            self._write()

    def settle(self, answered: Iterable[int]) -> None:
        """Forget those that have an answer by now."""
        if settled := self.reasons.keys() & set(answered):
            self.reasons = {number: reason for number, reason in self.reasons.items() if number not in settled}
            self._write()

    def _write(self) -> None:
        lines = [json.dumps(self._line(number, reason)) + "\n" for number, reason in sorted(self.reasons.items())]
        if lines:
            write_whole(self.path, "".join(lines))
            return
        with writing(self.path), suppress(FileNotFoundError):
            self.path.unlink()

    def _line(self, number: int, reason: str) -> dict[str, Any]:
        if number < 0:
            raise IndexError(number)
        return {"messages": self._questions[number], **self._plan.settings(number), "error": reason}
