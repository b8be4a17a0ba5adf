"""YAML whose every key knows the file and line it came from; documents merge and take overrides without losing that.

Scalars follow the YAML 1.2 core schema: `no` is a word, `1e-4` a number, and `12:30` a word.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from specdec.errors import SpecError
from specdec.files.paths import from_here

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys (as text) and list positions from the top of a document."""

_SCALARS = (
    (re.compile(r"~|null|Null|NULL|"), "null"),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), "bool"),
    (re.compile(r"[-+]?[0-9]+"), "int"),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "float"),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a key was written. source: a file, or the override itself; line: 1-based, None outside files."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to fix: where, which key, and what was got and expected."""

    origin: Origin
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.key}: {self.message}" if self.key else f"{self.origin}: {self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and the origin of every key in it; `problems` are what parsing already found."""

    data: Mapping[str, Any]
    origins: Mapping[KeyPath, Origin]
    problems: tuple[Problem, ...] = ()

    def origin(self, path: KeyPath) -> Origin:
        """The origin of `path`, or of the nearest key above it."""
        while path not in self.origins:
            path = path[:-1]
        return self.origins[path]

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem of the key at `path`."""
        return Problem(self.origin(path), ".".join(map(str, path)), message)


SHOWN = 10
"""Problems that a message lists; of the rest only the number is told."""


def listed(problems: Iterable[object]) -> str:
    """The problems one a line, the first few of them."""
    lines = list(map(str, problems))
    more = [f"... and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return "\n".join([*lines[:SHOWN], *more])


def read_file(path: Path) -> Document:
    """The document of a YAML file. Raises SpecError if it cannot be read or is not YAML."""
    name = from_here(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{name}: not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        raise SpecError(f"{name}: cannot be read: {error}") from error
    return read_text(text, str(name))


def read_text(text: str, source: str) -> Document:
    """The document of a YAML text; `source` names it in errors. Raises SpecError if it is not YAML."""
    node = compose(text, source)
    reader = _Reader(source)
    if node is not None and not isinstance(node, yaml.MappingNode):
        reader.report(node, (), "got something else, expected a mapping of keys to values")
        node = None
    data = reader.mapping(node, ()) if node is not None else {}
    return Document(data, {(): Origin(source, 1), **reader.origins}, tuple(reader.problems))


def read_value(text: str, source: str) -> Any:
    """The value of one YAML text, such as the right side of an override. Raises SpecError."""
    document = read_text(f"value: {text}", source)
    if document.problems or list(document.data) != ["value"]:
        reasons = "; ".join(p.message for p in document.problems) or "got several keys, expected one value"
        raise SpecError(f"{source}: {reasons}")
    return document.data["value"]


def from_mapping(data: Mapping[str, Any], source: str) -> Document:
    """A document of plain Python data; all of its keys have the origin `source`."""
    origin = Origin(source)
    problems = [Problem(origin, ".".join(path), "given twice, as a text and as a number") for path in _twice(data, ())]
    return Document(dict(data), {(): origin}, tuple(problems))


def _twice(data: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths of keys that are the same once written down."""
    if not isinstance(data, Mapping) or len(path) > MAX_DEPTH:
        return []
    counts = Counter(map(str, data))
    inner = [found for key, value in data.items() for found in _twice(value, (*path, str(key)))]
    return [(*path, key) for key, count in counts.items() if count > 1] + inner


class _Reader:
    """Turns nodes into plain data, and notes origins and problems on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[KeyPath, Origin] = {}
        self.problems: list[Problem] = []

    def report(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        origin = Origin(self.source, node.start_mark.line + 1)
        self.problems.append(Problem(origin, ".".join(map(str, path)), message))

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str | int) or isinstance(key, bool):
                written = shown(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "that is a list or a mapping"
                self.report(key_node, path, f"got the key {written}, expected a word or a whole number")
                continue
            here = (*path, str(key))
            if here in self.origins:
                self.report(key_node, here, f"given twice; first at line {self.origins[here].line}")
                continue
            self.origins[here] = Origin(self.source, key_node.start_mark.line + 1)
            result[key] = self.value(value_node, here)
        return result

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self.origins[*path, place] = Origin(self.source, item.start_mark.line + 1)
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        return self.scalar(node, path)

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text: str = node.value
        if isinstance(node, yaml.ScalarNode) and node.style:
            return text
        kind = next((kind for pattern, kind in _SCALARS if pattern.fullmatch(text)), "str")
        if kind in ("int", "float") and len(text) > MAX_DIGITS:
            self.report(node, path, f"got a number of {len(text)} digits, expected at most {MAX_DIGITS}")
            return 0
        if kind == "float" and not math.isfinite(number := float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))):
            self.report(node, path, f"got {shown(text).strip(chr(34))}, expected a finite number")
            return 0.0
        values: dict[str, Any] = {"null": None, "bool": text.lower() == "true", "str": text}
        return values[kind] if kind in values else int(text) if kind == "int" else number


MAX_DEPTH = 32
"""Levels of nesting."""

MAX_CHARACTERS = 1_000_000

MAX_DIGITS = 1000
"""Of a number. Python reads no more than 4300."""


def compose(text: str, source: str) -> yaml.Node | None:
    """The root node of a text; None for an empty one. `source` names it in errors.

    Raises SpecError for what is no YAML, for anchors, aliases and tags, of which a spec has no need, and beyond the limits.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"{source}: has {len(text)} characters, expected at most {MAX_CHARACTERS}")
    try:
        try:
            return _composed(text, source, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError:
            # The reader in Python says more precisely what is wrong, and takes ten times as long.
            return _composed(text, source, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{source}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: not YAML: {str(error).partition(chr(10))[0]}") from error


def _composed(text: str, source: str, loader: Any) -> yaml.Node | None:
    if faults := _faults(text, source, loader):
        raise SpecError(listed(faults))
    return yaml.compose(text, Loader=loader)


def _faults(text: str, source: str, loader: Any) -> list[str]:
    """What is refused, from the events, which are read without recursion and without following an alias."""
    faults = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        where = f"{source}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if (anchor := getattr(event, "anchor", None)) is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            faults.append(f"{where}: {sign}{anchor}: anchors and aliases are not understood; write the value out")
        if (tag := getattr(event, "tag", None)) is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            faults.append(f"{where}: the tag {shown} is not understood; a text is written in quotes, a number without")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return [*faults, f"{where}: nested deeper than {MAX_DEPTH} levels"]
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return faults


def shown(value: Any) -> str:
    """As JSON, cut where it is long."""
    return shortened(json.dumps(value, default=str))


def shortened(text: str) -> str:
    """At most 60 characters of it."""
    return text if len(text) <= 60 else f"{text[:57]}..."
