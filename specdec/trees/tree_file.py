"""Tree files: YAML to and from shapes."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from specdec.errors import SpecError
from specdec.files.model_file import checked_model, yaml_text
from specdec.files.yaml_document import Document, Problem, read_file, read_text
from specdec.trees.tree_shape import MAX_NODES, RankPath, TreeShape, check_path

_FORMS = ("paths", "chain", "widths")

_Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_NODES)]
_Text: TypeAlias = Annotated[str, Field(min_length=1)]


class Prediction(BaseModel):
    """What a search expects of its tree."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tau: Annotated[_Positive, Field(description="tokens a target forward")]
    speedup: Annotated[_Positive, Field(description="against plain decoding")]
    basis: Annotated[str, Field(description="acceptance and costs that it rests on")]


class _TreeData(BaseModel):
    """What stands in the file; exactly one of paths, chain and widths gives the shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Text
    source: _Text
    predicted: Prediction | None = None
    paths: Annotated[tuple[tuple[int, ...], ...] | None, Field(min_length=1, description="paths of ranks")] = None
    chain: Annotated[_Count | None, Field(description="length of a single path")] = None
    widths: Annotated[tuple[_Count, ...] | None, Field(min_length=1, description="children of every node, by level")] = None


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A named shape, where it comes from, and what it is predicted to gain, if a search has found it."""

    name: str
    source: str
    shape: TreeShape
    predicted: Prediction | None = None


def read_tree(path: Path) -> TreeFile:
    """A tree file. Raises SpecError with every mistake and its line."""
    return _tree(read_file(path))


def parse_tree(text: str, *, origin: str) -> TreeFile:
    """The text of a tree file; `origin` is what errors call it."""
    return _tree(read_text(text, origin))


def _tree(document: Document) -> TreeFile:
    data = checked_model(document, _TreeData, document.data, _misshapen(document))
    try:
        return TreeFile(data.name, data.source, _shape(data), data.predicted)
    except SpecError as error:
        form = next(form for form in _FORMS if getattr(data, form) is not None)
        raise SpecError(str(document.problem((form,), str(error)))) from error


def _shape(data: _TreeData) -> TreeShape:
    if data.chain is not None:
        return TreeShape.chain(data.chain)
    return TreeShape.k_ary(data.widths) if data.widths is not None else TreeShape(data.paths or ())


def _misshapen(document: Document) -> list[Problem]:
    """What the types of the keys do not say: which of them are there, and whether each path follows from those before it."""
    given = [form for form in _FORMS if document.data.get(form) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        return [document.problem((), f"exactly one of paths, chain and widths is needed; got {got}")]
    paths = document.data.get("paths")
    seen: set[RankPath] = {()}
    problems = []
    for place, path in enumerate(paths if isinstance(paths, list) else []):
        if not isinstance(path, list) or not all(type(rank) is int for rank in path):
            continue
        try:
            check_path(tuple(path), seen)
        except SpecError as error:
            problems.append(document.problem(("paths", place), str(error)))
        seen.add(tuple(path))
    return problems


def format_tree(tree: TreeFile) -> str:
    """The YAML text that `parse_tree` reads back; chains and k-ary trees take their short forms."""
    shape = tree.shape
    facts: dict[str, Any] = {"name": tree.name, "source": tree.source}
    if tree.predicted is not None:
        facts["predicted"] = tree.predicted.model_dump()
    head = yaml_text(facts)
    if shape.num_nodes and shape.is_chain:
        return f"{head}chain: {shape.depth}\n"
    sizes = (1, *shape.level_sizes())
    widths = [after // before for before, after in pairwise(sizes)]
    if widths and min(widths) > 0 and TreeShape.k_ary(widths) == shape:
        return f"{head}widths: {widths}\n"
    return f"{head}paths:\n" + "".join(f"  - {list(path)}\n" for path in shape.paths)
