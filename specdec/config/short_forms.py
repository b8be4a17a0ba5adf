"""Short forms of a part: its name alone, or for a target the model's path or hub id; and files that are no strategy."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from specdec.files.yaml_document import Document

KINDS = ("target", "drafter", "tree", "verifier")

OTHER_FILES = (
    ({"data", "features", "output"}, "a training spec: `specdec train` takes it"),
    ({"paths"}, "a tree file: a strategy names it, as in tree: {use: fixed, file: FILE}"),
    ({"chain"}, "a tree file: a strategy names it, as in tree: {use: fixed, file: FILE}"),
    ({"widths"}, "a tree file: a strategy names it, as in tree: {use: fixed, file: FILE}"),
    ({"kind"}, "a file of measurements: a strategy names it, as in tree: {use: adaptive, cost: FILE}"),
)
"""Keys that no strategy has, and what a file with them is."""


def other_file(data: Mapping[str, Any]) -> str | None:
    """What a file is that is plainly no strategy; None for what may be one."""
    if {"drafter", "extends"} & set(map(str, data)):
        return None
    return next((meaning for keys, meaning in OTHER_FILES if keys <= set(map(str, data))), None)


def target_part(text: str, names: Collection[str]) -> dict[str, Any]:
    """The target that a text means: a registered one by its name, else a Hugging Face model."""
    return {"use": text} if text in names else {"use": "huggingface", "model": text}


def spelled_out(document: Document, targets: Collection[str]) -> Document:
    """The document with its parts as mappings. targets: names of registered targets; other texts are models."""
    data = dict(document.data)
    for kind in KINDS:
        value = data.get(kind)
        if isinstance(value, str) and value:
            data[kind] = target_part(value, targets) if kind == "target" else {"use": value}
    drafter = data.get("drafter")
    if isinstance(drafter, Mapping) and isinstance(drafter.get("parts"), list):
        parts = [{"use": part} if isinstance(part, str) and part else part for part in drafter["parts"]]
        data["drafter"] = {**drafter, "parts": parts}
    return replace(document, data=data)
