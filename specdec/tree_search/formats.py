"""Tree shapes in the formats of other projects: read and written, nothing executed."""

import json
import warnings
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from specdec.errors import SpecError
from specdec.files.atomic import whole_file, write_whole
from specdec.files.jsonl import parse_json
from specdec.files.paths import is_file
from specdec.files.reading import text_of
from specdec.tree_search.tree_lists import read_choices
from specdec.trees.tree_file import TreeFile, format_tree, read_tree
from specdec.trees.tree_shape import MAX_NODES, RankPath, TreeShape


class TreeFormat(StrEnum):
    """specdec: our tree files. choices: a list of rank lists, as Medusa and EAGLE have it. vllm: the same as tuples.

    sequoia: a growmap, a torch file. umbrella: UMbreLLa's JSON, the same keys.
    """

    SPECDEC = "specdec"
    CHOICES = "choices"
    VLLM = "vllm"
    SEQUOIA = "sequoia"
    UMBRELLA = "umbrella"


def guess_format(path: Path) -> TreeFormat:
    """By the ending: .yaml ours, .pt or .pth Sequoia's, .json UMbreLLa's if it holds a mapping, anything else choices."""
    if path.suffix in (".yaml", ".yml"):
        return TreeFormat.SPECDEC
    if path.suffix in (".pt", ".pth"):
        return TreeFormat.SEQUOIA
    if path.suffix == ".json" and is_file(path) and text_of(path).lstrip().startswith("{"):
        return TreeFormat.UMBRELLA
    return TreeFormat.CHOICES


def read_foreign(path: Path, kind: TreeFormat, *, variable: str | None = None) -> TreeFile:
    """The tree in a file. variable: the list's name in a Python file. Raises SpecError naming the file."""
    if kind is TreeFormat.SPECDEC:
        return read_tree(path)
    if kind is TreeFormat.SEQUOIA:
        shape = from_growmap(_torch_mapping(path), str(path))
    elif kind is TreeFormat.UMBRELLA:
        shape = from_growmap(_json_mapping(path), str(path))
    else:
        shape = read_choices(text_of(path), variable=variable, origin=str(path))
    return TreeFile(path.stem if variable is None else variable, f"{kind.value} file {path.name}", shape)


def write_foreign(tree: TreeFile, path: Path, kind: TreeFormat) -> None:
    """Write a tree in a format; the file appears when it is whole. Raises SpecError for a tree without a node."""
    if not tree.shape.num_nodes:
        raise SpecError(f"{path}: the tree has no node, and no program could draft with it")
    if kind is TreeFormat.SEQUOIA:
        with whole_file(path) as scratch, scratch.open("wb") as file:
            torch.save(_tensors(to_growmap(tree.shape)), file)
        return
    paths = tree.shape.paths
    texts = {
        TreeFormat.SPECDEC: lambda: format_tree(tree),
        TreeFormat.CHOICES: lambda: json.dumps([list(p) for p in paths]) + "\n",
        TreeFormat.VLLM: lambda: str(list(paths)) + "\n",
        TreeFormat.UMBRELLA: lambda: json.dumps(to_growmap(tree.shape)) + "\n",
    }
    write_whole(path, texts[kind]())


def from_growmap(growmap: Mapping[str, Any], origin: str) -> TreeShape:
    """The shape of `Successors`: by node its children in draw order. *Source: arXiv 2402.12374, the authors' files.*

    Raises SpecError for what is no tree with node 0 as its root.
    """
    successors = growmap.get("Successors")
    if not isinstance(successors, list) or not all(isinstance(row, list) for row in successors):
        raise SpecError(f"{origin}: no growmap: expected a list of lists under 'Successors', the children of each node")
    if not 1 <= len(successors) <= MAX_NODES + 1:
        raise SpecError(f"{origin}: a growmap of {len(successors)} nodes; 1 to {MAX_NODES + 1} are accepted")
    paths: dict[int, RankPath] = {0: ()}
    waiting = [0]
    for node in waiting:
        for rank, child in enumerate(successors[node]):
            if type(child) is not int or not 0 < child < len(successors) or child in paths:
                raise SpecError(f"{origin}: node {node} has the child {child!r}, which is no other node or has two parents")
            paths[child] = (*paths[node], rank)
            waiting.append(child)
    if len(paths) < len(successors):
        lost = next(node for node in range(len(successors)) if node not in paths)
        raise SpecError(f"{origin}: node {lost} is nobody's child")
    return TreeShape.of(paths[node] for node in range(1, len(successors)))


def to_growmap(shape: TreeShape) -> dict[str, Any]:
    """The growmap of a shape: nodes level by level, the root first."""
    order: list[RankPath] = [(), *sorted(shape.paths, key=lambda path: (len(path), path))]
    number = {path: node for node, path in enumerate(order)}
    counts = shape.child_counts()
    successors = [[number[*path, rank] for rank in range(counts.get(path, 0))] for path in order]
    levels = [[number[p] for p in order if len(p) == depth] for depth in range(shape.depth + 1)]
    mask = [[int(other == path[: len(other)]) for other in order] for path in order]
    return {
        "roots": levels,
        "branches": [[len(successors[node]) for node in level] for level in levels],
        "Successors": successors,
        "mask": mask,
        "depth": [len(path) for path in order],
        "size": len(order),
    }


def _tensors(growmap: dict[str, Any]) -> dict[str, Any]:
    """As Sequoia keeps it: mask and depth are tensors."""
    return {**growmap, "mask": torch.tensor(growmap["mask"]), "depth": torch.tensor(growmap["depth"])}


def _torch_mapping(path: Path) -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the unpickler raises at bytes that it does not know
        reason = str(error).strip().partition("\n")[0]
        raise SpecError(f"{path}: no growmap that can be read safely: {reason}") from error
    if not isinstance(loaded, Mapping):
        raise SpecError(f"{path}: holds {type(loaded).__name__}; a growmap is a mapping with 'Successors'")
    return loaded


def _json_mapping(path: Path) -> Mapping[str, Any]:
    try:
        loaded = parse_json(text_of(path))
    except ValueError as error:
        raise SpecError(f"{path}: no JSON: {error}") from error
    if not isinstance(loaded, Mapping):
        raise SpecError(f"{path}: holds {type(loaded).__name__}; a growmap is a mapping with 'Successors'")
    return loaded
