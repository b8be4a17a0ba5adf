"""Tree files: YAML to and from shapes, the options by which builders name one, and the tree lists of other projects."""

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import yaml
from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from specdec.errors import SpecdecError, SpecError
from specdec.files.paths import is_file
from specdec.files.yaml_document import compose
from specdec.interfaces import PartOptions
from specdec.tree_shapes import MAX_NODES, RankPath, TreeShape, check_path


def _find(name: str, info: ValidationInfo) -> str:
    """The file of a tree name, if whoever validates brings `find_tree` in the context."""
    find: Callable[[str], Path] | None = (info.context or {}).get("find_tree")
    if find is None:
        return name
    try:
        return str(find(name))
    except SpecdecError as error:
        raise ValueError(str(error)) from error


TreeName: TypeAlias = Annotated[str, AfterValidator(_find), Field(min_length=1, description="a tree file: name or path")]
Paths: TypeAlias = Annotated[tuple[RankPath, ...], Field(min_length=1, description="the shape itself: paths of ranks")]
Widths: TypeAlias = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, description="children of every node, level by level")
]


def one_shape(*, file: str | None, paths: Sequence[Sequence[int]] | None, widths: Sequence[int] | None) -> TreeShape | None:
    """The shape that exactly one of the three gives; None for a `file` that is still a name.

    Raises SpecError for none or several, and for what is wrong with the one.
    """
    given = [name for name, value in (("file", file), ("paths", paths), ("widths", widths)) if value is not None]
    if len(given) != 1:
        raise SpecError(f"a tree needs exactly one of file, paths and widths; got {' and '.join(given) or 'none'}")
    if file is not None:
        return read_tree(Path(file)).shape if is_file(Path(file)) else None
    return TreeShape.of(paths) if paths is not None else TreeShape.k_ary(widths or ())


class ShapeOptions(PartOptions):
    """The shape of a builder's tree: exactly one of file, paths and widths."""

    file: Annotated[TreeName | None, Field(description="a tree file: name or path")] = None
    paths: Annotated[Paths | None, Field(description="the shape itself: paths of ranks")] = None
    widths: Annotated[Widths | None, Field(description="children of every node, level by level")] = None

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        try:
            one_shape(file=self.file, paths=self.paths, widths=self.widths)
        except SpecError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def known_shape(self) -> TreeShape | None:
        """The shape; None for a file that is still a bare name."""
        return one_shape(file=self.file, paths=self.paths, widths=self.widths)

    def shape(self, find_tree: Callable[[str], Path]) -> TreeShape:
        """The shape, its file found and read. Raises SpecError for one that is malformed."""
        known = self.known_shape
        return known if known is not None else read_tree(find_tree(self.file or "")).shape


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
    if not isinstance(value, dict) or sorted(value) != sorted(_PREDICTED):
        raise SpecError(f"{where}: 'predicted' must be a mapping of {', '.join(_PREDICTED)}; got {value!r}")
    tau, speedup, basis = (value[key] for key in _PREDICTED)
    for key, number in (("tau", tau), ("speedup", speedup)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
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


def from_choices(choices: Sequence[Sequence[int]]) -> TreeShape:
    """The shape of a list of rank lists: `medusa_choices` of Medusa, `choices.py` of EAGLE, vLLM's `speculative_token_tree`.

    Its order is kept where it may be. *Source: arXiv 2401.10774, 2401.15077.*
    """
    return TreeShape.of(choices)


def read_choices(text: str, *, variable: str | None = None, origin: str = "the list") -> TreeShape:
    """`from_choices` of a literal (JSON, or Python lists and tuples), or of a Python file that assigns it to `variable`.

    Nothing is executed. Raises SpecError with the line where there is one.
    """
    try:
        module = ast.parse(text.strip())
    except SyntaxError as error:
        raise SpecError(f"{origin}: line {error.lineno}: neither JSON nor Python: {error.msg}") from error
    values = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    last = module.body[-1] if module.body else None
    value = last.value if variable is None and isinstance(last, ast.Expr) else values.get(variable or next(iter(values), ""))
    if value is None:
        wanted = "no list" if variable is None else f"no list called {variable!r}"
        raise SpecError(f"{origin}: {wanted}; names found: {', '.join(values) or 'none'}")
    try:
        choices = ast.literal_eval(value)
        return from_choices(choices)
    except SpecError as error:
        raise SpecError(f"{origin}: line {value.lineno}: {error}") from error
    except (ValueError, TypeError) as error:
        raise SpecError(f"{origin}: line {value.lineno}: a list of lists of ranks is needed") from error
