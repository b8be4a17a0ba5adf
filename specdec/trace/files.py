"""Trace files: JSON lines, a header, a line a step, and how it ended."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from specdec.errors import SpecError
from specdec.files.atomic import writing
from specdec.files.jsonl import checked, parsed, whole_lines
from specdec.files.locks import exclusive
from specdec.files.paths import exists, is_folder
from specdec.trace.steps import Trace, TraceEnd, TraceHeader, TraceStep

FORMAT = 1
KINDS = ("trace", "step", "end")

_HEADERS, _STEPS, _ENDS = TypeAdapter(TraceHeader), TypeAdapter(TraceStep), TypeAdapter(TraceEnd)


def check_place(path: Path) -> None:
    """Raise SpecError where no trace can be written: something else is there, or there is no folder."""
    if is_folder(path):
        raise SpecError(f"{path}: is a folder; expected the name of a file to write")
    if exists(path) and not is_trace(path):
        raise SpecError(f"{path} is there and is no trace: give another name")
    if not is_folder(path.parent):
        raise SpecError(f"{path}: cannot be written: there is no folder {path.parent}")


class TraceFile:
    """A trace that is being written, line by line. An earlier trace of that name is replaced, another file is not."""

    def __init__(self, path: Path) -> None:
        """Raises SpecError where the file cannot be written, is something else, or is being written already."""
        check_place(path)
        self._path = path
        with ExitStack() as held:
            held.enter_context(exclusive(path))
            with writing(path):
                self._file = path.open("w", encoding="utf-8", errors="replace")
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._held:
            try:
                with writing(self._path):
                    self._file.close()
            except SpecError:
                if error is None:
                    raise

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
        with writing(self._path):
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
