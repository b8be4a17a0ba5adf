"""The file that measurements go to: JSON lines that only ever grow, and that can be resumed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from specdec.bench.measurements import Header, LoadedTarget, Measurement, Results
from specdec.bench.prompts import PromptFile
from specdec.errors import SpecError
from specdec.files.atomic import write_whole, writing
from specdec.files.jsonl import append_lines, checked, cut_unfinished_line, parsed, whole_lines
from specdec.files.locks import exclusive
from specdec.files.paths import exists

FORMAT = 1

BEGINNING = b'{"header": '
KINDS = ("header", "resumed", "loaded", "measurement")
_HEADERS, _MEASUREMENTS, _RESUMED = TypeAdapter(Header), TypeAdapter(Measurement), TypeAdapter(Mapping[str, Any])
_LOADED = TypeAdapter(LoadedTarget)


class _Plan(TypedDict, total=False):
    """What reports read of a header's plan."""

    prompts: list[PromptFile]
    settings: dict[str, Any]


class _Verifier(TypedDict, total=False):
    use: str


class _Spec(TypedDict, total=False):
    verifier: _Verifier


class _Described(TypedDict, total=False):
    """What reports read of a contender."""

    spec: _Spec | None


_PLANS, _DESCRIBED = TypeAdapter(_Plan), TypeAdapter(dict[str, _Described])


def read_results(path: Path) -> Results:
    """The whole lines of a results file. Raises SpecError by line; a last line cut short is left out."""
    lines = whole_lines(path, "the results of `specdec bench`")
    if not lines[0].startswith(BEGINNING):
        raise SpecError(f"{path}: no results of `specdec bench`: the first line is no header")
    header = _header(*parsed(lines[0], f"{path}:1", KINDS), str(path))
    found: dict[Any, tuple[str, Measurement]] = {}
    loaded: list[LoadedTarget] = []
    resumed: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines[1:], 2):
        where = f"{path}:{number}"
        kind, value = parsed(line, where, KINDS)
        if kind == "resumed":
            resumed.append(checked(_RESUMED, value, where, strict=True))
        elif kind == "loaded":
            loaded.append(checked(_LOADED, value, where, strict=True))
        elif kind == "measurement":
            measurement = _measurement(value, where, header)
            if measurement.key in found:
                first = found[measurement.key][0].rpartition(":")[2]
                raise SpecError(
                    f"{where}: measures again what line {first} has ({measurement.contender}, group {measurement.group}, "
                    f"turn {measurement.turn}, {measurement.cell.words}): two processes wrote this file; delete one line"
                )
            found[measurement.key] = where, measurement
        else:
            raise SpecError(f"{where}: got a line of kind {kind!r}; expected measurement, resumed or loaded")
    return Results(header, tuple(measurement for _, measurement in found.values()), tuple(resumed), tuple(loaded))


def _measurement(value: Any, where: str, header: Header) -> Measurement:
    measurement = checked(_MEASUREMENTS, value, where, strict=True)
    if measurement.contender not in header.contenders:
        raise SpecError(f"{where}: contender '{measurement.contender}' is not in the header")
    for answer in measurement.answers:
        if answer.counts is not None and (problem := answer.counts.problem()) is not None:
            raise SpecError(f"{where}: the counts of {answer.question} contradict each other: {problem}")
    return measurement


def _header(kind: Any, value: Any, where: str) -> Header:
    if kind != "header" or not isinstance(value, dict):
        raise SpecError(f"{where}:1: the header is damaged")
    if value.get("format") != FORMAT:
        raise SpecError(f"{where}: results of format {value.get('format')!r}; this version reads format {FORMAT}")
    header = checked(_HEADERS, {k: v for k, v in value.items() if k != "format"}, f"{where}:1", strict=True)
    checked(_PLANS, {key: header.plan[key] for key in ("prompts", "settings") if key in header.plan}, f"{where}:1", strict=True)
    checked(_DESCRIBED, header.contenders, f"{where}:1", strict=True)
    return header


class ResultsFile:
    """A results file that is written to, by one process at a time: a context manager, which lets go of it at the end.

    done: the measurements that were there. changed: what is different about the machine or the versions since then.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Begin the file, or resume it; a header without a measurement gives way to another.

        Raises SpecError where the file holds the results of something else, cannot be written, or is being written already.
        """
        self._path = path
        self.done: tuple[Measurement, ...] = ()
        self._loaded: list[LoadedTarget] = []
        self.changed: list[str] = []
        with ExitStack() as held:
            held.enter_context(exclusive(path))
            self.resumes = exists(path) and _cut_unfinished_line(path) > 0
            if self.resumes:
                self._resume(header)
            else:
                self._begin(header)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write the file."""
        self._held.close()

    def _begin(self, header: Header) -> None:
        write_whole(self._path, "")
        self._append("header", {"format": FORMAT, **asdict(header)})

    def _resume(self, header: Header) -> None:
        path, before = self._path, read_results(self._path)
        found = differences(asdict(before.header), asdict(header), ("plan", "contenders"))
        if found and not before.measurements:
            self.resumes = False
            self._begin(header)
            return
        if found:
            listed = "\n  ".join(found)
            raise SpecError(f"{path} holds results of another set-up; give another --output, or the same set-up:\n  {listed}")
        self.done = before.measurements
        self._loaded = list(before.loaded)
        self.changed = differences(dict(before.header.provenance), dict(header.provenance))
        self._append("resumed", dict(header.provenance))

    def load(self, target: LoadedTarget) -> None:
        """Write down what is measured, unless the file says so already."""
        if target not in self._loaded:
            self._loaded.append(target)
            self._append("loaded", asdict(target))

    def add(self, measurement: Measurement) -> None:
        """Append one line, whole and flushed."""
        self._append("measurement", asdict(measurement))

    def _append(self, kind: str, value: Any) -> None:
        append_lines(self._path, [{kind: value}])


def _cut_unfinished_line(path: Path) -> int:
    """The bytes that are left of it. Raises SpecError for another kind of file."""
    with writing(path), path.open("rb") as file:
        start = file.read(len(BEGINNING))
    if start != BEGINNING[: len(start)]:
        raise SpecError(f"{path} is there and holds no results of `specdec bench`: give another --output")
    return cut_unfinished_line(path)


def differences(before: Any, now: Any, keys: Sequence[str] | None = None, at: str = "") -> list[str]:
    """Where two settings differ, one line a value. keys: only below these."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names = [*before, *(name for name in now if name not in before)] if keys is None else keys
        absent = "nothing"
        return [
            line
            for name in names
            for line in differences(before.get(name, absent), now.get(name, absent), at=f"{at}.{name}" if at else str(name))
        ]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [line for place, (a, b) in pairs for line in differences(a, b, at=f"{at}[{place}]")]
    if _plain(before) == _plain(now):
        return []
    return [f"{at}: {_shown(before)} there, {_shown(now)} here"]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
