"""YAML whose every key knows the file and line it came from; documents merge and take overrides without losing that.

Scalars follow the YAML 1.2 core schema: `no` is a word, `1e-4` a number, and `12:30` a word.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from specdec.errors import SpecError

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
    """One thing to mend: where, which key, and what was got and expected."""

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
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{shown}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown}: not UTF-8 text (byte {error.start})") from error
    return read_text(text, str(shown))


def read_text(text: str, source: str) -> Document:
    """The document of a YAML text; `source` names it in errors. Raises SpecError if it is not YAML."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{source}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: not YAML: {error}") from error
    reader = _Reader(source)
    if node is not None and not isinstance(node, yaml.MappingNode):
        reader.report(node, (), "got something else, expected a mapping of keys to values")
        node = None
    data = reader.mapping(node, (), ()) if node is not None else {}
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
    return Document(dict(data), {(): Origin(source)})


class _Reader:
    """Turns nodes into plain data, and notes origins and problems on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origins: dict[KeyPath, Origin] = {}
        self.problems: list[Problem] = []

    def report(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        origin = Origin(self.source, node.start_mark.line + 1)
        self.problems.append(Problem(origin, ".".join(map(str, path)), message))

    def mapping(self, node: yaml.MappingNode, path: KeyPath, above: tuple[yaml.Node, ...]) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.value(key_node, path, above) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str | int) or isinstance(key, bool):
                self.report(key_node, path, f"got the key {key_node.value!r}, expected a word or a whole number")
                continue
            here = (*path, str(key))
            if key in result:
                self.report(key_node, here, f"given twice; first at line {self.origins[here].line}")
                continue
            self.origins[here] = Origin(self.source, key_node.start_mark.line + 1)
            result[key] = self.value(value_node, here, above)
        return result

    def value(self, node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> Any:
        if any(node is a for a in above):
            self.report(node, path, "contains itself")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, (*above, node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i), (*above, node)) for i, item in enumerate(node.value)]
        return self.scalar(node, path)

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text: str = node.value
        if node.tag == "!" or node.tag.startswith("!") or "python" in node.tag:
            self.report(node, path, f"the tag {node.tag} is not understood")
        if getattr(node, "style", None) is not None:
            return text
        kind = next((kind for pattern, kind in _SCALARS if pattern.fullmatch(text)), "str")
        if kind == "float" and not math.isfinite(number := float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))):
            self.report(node, path, f"got {text}, expected a finite number")
            return 0.0
        values: dict[str, Any] = {"null": None, "bool": text.lower() == "true", "str": text}
        return values[kind] if kind in values else int(text) if kind == "int" else number
