"""Tree files: YAML to and from shapes."""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from specdec.errors import SpecError
from specdec.files.yaml_document import compose
from specdec.trees.tree_shape import MAX_NODES, RankPath, TreeShape, check_path

_KEYS = ("name", "source", "predicted", "paths", "chain", "widths")
_PREDICTED = ("tau", "speedup", "basis")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a search expects of its tree. speedup: against plain decoding; basis: acceptance and costs that it rests on."""

    tau: float
    speedup: float
    basis: str


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A named shape, where it comes from, and what it is predicted to gain, if a search has found it."""

    name: str
    source: str
    shape: TreeShape
    predicted: Prediction | None = None


def read_tree(path: Path) -> TreeFile:
    """A tree file. Raises SpecError with the file and, where YAML tells it, the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    return parse_tree(text, origin=str(path))


def parse_tree(text: str, *, origin: str) -> TreeFile:
    """The text of a tree file; `origin` is what errors call it."""
    node = compose(text, origin)
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{origin}: a tree file is a mapping with name, source and one of paths, chain and widths")
    lines = _key_lines(node, origin)
    try:
        data: dict[str, Any] = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{origin}: not a tree file: {str(error).partition(chr(10))[0]}") from error
    for key in ("name", "source"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise SpecError(f"{origin}: line {lines.get(key, 1)}: '{key}' must be a text; got {data.get(key)!r}")
    predicted = _prediction(data["predicted"], f"{origin}: line {lines['predicted']}") if "predicted" in data else None
    return TreeFile(data["name"], data["source"], _shape_in(data, node, lines, origin), predicted)


def _prediction(value: object, where: str) -> Prediction:
    if not isinstance(value, dict) or set(value) != set(_PREDICTED):
        raise SpecError(f"{where}: 'predicted' must be a mapping of {', '.join(_PREDICTED)}; got {value!r}")
    tau, speedup, basis = (value[key] for key in _PREDICTED)
    for key, number in (("tau", tau), ("speedup", speedup)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= sys.float_info.max:
            raise SpecError(f"{where}: predicted.{key} must be a number above 0; got {number!r}")
    if not isinstance(basis, str):
        raise SpecError(f"{where}: predicted.basis must be a text; got {basis!r}")
    return Prediction(float(tau), float(speedup), basis)


def _key_lines(node: yaml.MappingNode, origin: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.value not in _KEYS:
            near = difflib.get_close_matches(str(key.value), _KEYS, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(_KEYS)}"
            raise SpecError(f"{origin}: line {line}: unknown key {key.value!r}{hint}")
        if key.value in lines:
            raise SpecError(f"{origin}: line {line}: '{key.value}' occurs twice, first in line {lines[key.value]}")
        lines[key.value] = line
    return lines


def _shape_in(data: Mapping[str, Any], node: yaml.MappingNode, lines: Mapping[str, int], origin: str) -> TreeShape:
    given = [key for key in ("paths", "chain", "widths") if key in data]
    if len(given) != 1:
        raise SpecError(f"{origin}: exactly one of paths, chain and widths is needed; got {' and '.join(given) or 'none'}")
    value, line = data[given[0]], lines[given[0]]
    try:
        if given[0] == "chain":
            return TreeShape.chain(_count(value))
        if not isinstance(value, list) or not value:
            raise SpecError(f"'{given[0]}' must be a list that is not empty; got {value!r}")
        if given[0] == "widths":
            return TreeShape.k_ary([_count(width) for width in value])
        entries = next(entry for key, entry in node.value if key.value == "paths").value
        seen: set[RankPath] = {()}
        for path, entry in zip(value, entries, strict=True):
            line = entry.start_mark.line + 1
            if not isinstance(path, list):
                raise SpecError(f"a path is a list of ranks; got {path!r}")
            check_path(tuple(path), seen)
            seen.add(tuple(path))
        return TreeShape(tuple(map(tuple, value)))
    except SpecError as error:
        raise SpecError(f"{origin}: line {line}: {error}") from error


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NODES:
        raise SpecError(f"a count from 1 to {MAX_NODES} is needed; got {value!r}")
    return value


def format_tree(tree: TreeFile) -> str:
    """The YAML text that `parse_tree` reads back; chains and k-ary trees take their short forms."""
    shape = tree.shape
    facts: dict[str, Any] = {"name": tree.name, "source": tree.source}
    if tree.predicted is not None:
        facts["predicted"] = {key: getattr(tree.predicted, key) for key in _PREDICTED}
    head = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120)
    if shape.num_nodes and shape.is_chain:
        return f"{head}chain: {shape.depth}\n"
    sizes = (1, *shape.level_sizes())
    widths = [after // before for before, after in pairwise(sizes)]
    if widths and min(widths) > 0 and TreeShape.k_ary(widths) == shape:
        return f"{head}widths: {widths}\n"
    return f"{head}paths:\n" + "".join(f"  - {list(path)}\n" for path in shape.paths)


def write_tree(tree: TreeFile, path: Path) -> None:
    """Write a tree file."""
    path.write_text(format_tree(tree), encoding="utf-8")
