"""YAML whose every key knows the file and line it came from; documents merge and take overrides without losing that.

Scalars follow the YAML 1.2 core schema: `no` is a word, `1e-4` a number, and `12:30` a word.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from specdec.errors import SpecError
from specdec.files.paths import from_here
from specdec.files.reading import text_of
from specdec.files.yaml_syntax import MAX_DEPTH, compose, missing_space, strange_space

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

    @property
    def folder(self) -> Path:
        """Where a path that is written there starts: the file's folder, or the working folder."""
        return Path() if self.line is None else Path(self.source).parent


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


def read_file(path: Path) -> Document:
    """The document of a YAML file. Raises SpecError if it cannot be read or is not YAML."""
    name = str(from_here(path))
    return read_text(text_of(path, name), name)


def read_text(text: str, source: str) -> Document:
    """The document of a YAML text; `source` names it in errors. Raises SpecError if it is not YAML."""
    node = compose(text, source)
    reader = _Reader(source)
    if node is not None and not isinstance(node, yaml.MappingNode):
        reader.report(node, (), _no_mapping(node))
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


def _no_mapping(node: yaml.Node) -> str:
    """What a whole file is in place of a mapping."""
    expected = "expected a mapping of keys to values, such as 'name: x'"
    if isinstance(node, yaml.SequenceNode):
        return f"got a list, {expected}; a line that begins with '-' is an item of one"
    if (space := strange_space(node.value)) is not None:
        return f"got the text {shown(node.value)}, {expected}; it holds {space[1]}, which YAML takes for a letter"
    key = missing_space(node.value)
    return f"got the text {shown(node.value)}, {expected}" + (f"; a space is missing after '{key}:'" if key else "")


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
            if (slip := _key_slip(key_node, value_node)) is not None:
                self.report(key_node, path, slip)
                continue
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
        if (space := strange_space(text[:1] + text[-1:])) is not None:
            self.report(node, path, f"got {shown(text)}, which begins or ends with {space[1]}; an ordinary space would work")
        kind = next((kind for pattern, kind in _SCALARS if pattern.fullmatch(text)), "str")
        if kind in ("int", "float") and len(text) > MAX_DIGITS:
            self.report(node, path, f"got a number of {len(text)} digits, expected at most {MAX_DIGITS}")
            return 0
        if kind == "float" and not math.isfinite(number := float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))):
            self.report(node, path, f"got {shown(text).strip(chr(34))}, expected a finite number")
            return 0.0
        values: dict[str, Any] = {"null": None, "bool": text.lower() == "true", "str": text}
        return values[kind] if kind in values else int(text) if kind == "int" else number


def _key_slip(key: yaml.ScalarNode, value: yaml.Node) -> str | None:
    """What is wrong with a key that is no key: it holds what only looks like a space, or its value for want of one."""
    if (space := strange_space(key.value)) is not None:
        column = key.start_mark.column + 1 + space[0]
        return f"the key {shown(key.value)} holds {space[1]} at column {column}; an ordinary space would work"
    empty = isinstance(value, yaml.ScalarNode) and not value.value and not value.style
    begun = re.match(r"[\w.-]+:[{\[\"']", key.value) is not None
    name = missing_space(key.value) if not key.style and (empty or begun) else None
    return None if name is None else f"got {shown(key.value)}: a space is missing after '{name}:'"


MAX_DIGITS = 1000
"""Of a number. Python reads no more than 4300."""


def shown(value: Any) -> str:
    """As JSON, cut where it is long."""
    return shortened(json.dumps(value, default=str))


def shortened(text: str) -> str:
    """At most 60 characters of it."""
    return text if len(text) <= 60 else f"{text[:57]}..."
