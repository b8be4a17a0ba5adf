"""Trace files: JSON lines, a header, a line a step, and how it ended."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter

from specdec.errors import SpecError
from specdec.files.jsonl import checked, parsed, whole_lines
from specdec.files.paths import exists
from specdec.trace.steps import Trace, TraceEnd, TraceHeader, TraceStep

FORMAT = 1
KINDS = ("trace", "step", "end")

_HEADERS, _STEPS, _ENDS = TypeAdapter(TraceHeader), TypeAdapter(TraceStep), TypeAdapter(TraceEnd)


class TraceFile:
    """A trace that is being written, line by line. An earlier trace of that name is replaced, another file is not."""

    def __init__(self, path: Path) -> None:
        """Raises SpecError where the file cannot be written, or is something else."""
        if exists(path) and not is_trace(path):
            raise SpecError(f"{path} is there and is no trace: give another name, or remove it")
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{path}: cannot be written to: {error}") from error

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def begin(self, header: TraceHeader) -> None:
        """The first line."""
        self._line("trace", {"format": FORMAT, **asdict(header)})

    def step(self, step: TraceStep) -> None:
        """One more step."""
        self._line("step", asdict(step))

    def end(self, end: TraceEnd) -> None:
        """The last line."""
        self._line("end", asdict(end))

    def _line(self, kind: str, value: Any) -> None:
        self._file.write(json.dumps({kind: value}, ensure_ascii=False) + "\n")


def is_trace(path: Path) -> bool:
    """Whether the file is empty or begins as a trace does."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError:
        return False
    return start in (b"", b'{"trace":')


def read_trace(path: Path) -> Trace:
    """The trace of a file. A last line cut short is left out. Raises SpecError by line."""
    lines = whole_lines(path, "a trace of `specdec generate --trace`")
    header = _header(lines[0], f"{path}:1")
    steps, end = _rest(lines[1:], path)
    return Trace(header, tuple(steps), end)


def _header(line: bytes, where: str) -> TraceHeader:
    kind, value = parsed(line, where, KINDS)
    if kind != "trace" or not isinstance(value, dict):
        raise SpecError(f"{where}: no trace of `specdec generate --trace`")
    if value.get("format") != FORMAT:
        raise SpecError(f"{where}: a trace of format {value.get('format')!r}; this version reads format {FORMAT}")
    return checked(_HEADERS, {k: v for k, v in value.items() if k != "format"}, where)


def _rest(lines: Iterable[bytes], path: Path) -> tuple[list[TraceStep], TraceEnd | None]:
    steps: list[TraceStep] = []
    end: TraceEnd | None = None
    for number, line in enumerate(lines, 2):
        where = f"{path}:{number}"
        kind, value = parsed(line, where, KINDS)
        if kind == "step" and end is None:
            steps.append(checked(_STEPS, value, where))
            _check_tree(steps[-1], where)
        elif kind == "end" and end is None:
            end = checked(_ENDS, value, where)
        else:
            raise SpecError(f"{where}: got a line of kind {kind!r}; expected step or, once, end")
    return steps, end


def _check_tree(step: TraceStep, where: str) -> None:
    """Raise SpecError unless the lists fit together, so that drawing can trust them."""
    size = len(step.tokens)
    if not size or {len(step.texts), len(step.parents), len(step.p), len(step.q)} != {size}:
        raise SpecError(f"{where}: the lists by node differ in length")
    if any(not (parent == -1 if node == 0 else 0 <= parent < node) for node, parent in enumerate(step.parents)):
        raise SpecError(f"{where}: a node's parent is missing or does not come before it")
    if any(not 0 < node < size for node in step.path) or len(step.source) not in (0, size):
        raise SpecError(f"{where}: path or source name nodes that are not there")
    if len(step.emitted) != len(step.emitted_texts):
        raise SpecError(f"{where}: emitted and emitted_texts differ in length")
