"""One document laid over another: `extends` and overrides."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import SpecError
from specdec.files.yaml_document import MAX_DIGITS, Document, KeyPath, Origin, Problem, read_value
from specdec.files.yaml_syntax import MAX_DEPTH

NOT_INHERITED = ("name", "description", "extends")

MAX_SHOWN = 200
"""Characters of an override that errors repeat."""


def layered(base: Document, top: Document) -> Document:
    """`top` over `base`, mapping by mapping. A part that names another `use` starts afresh; names are not inherited."""
    below = {k: v for k, v in base.data.items() if k not in NOT_INHERITED}
    data, replaced = _merge(below, top.data, ())
    gone = set(replaced)
    kept = {p: o for p, o in base.origins.items() if p and not any(p[:end] in gone for end in range(1, len(p) + 1))}
    whole = {path: top.origin(path) for path in replaced}
    return Document(data, {**kept, **whole, **top.origins}, (*base.problems, *top.problems))


def _merge(below: Mapping[Any, Any], above: Mapping[Any, Any], path: KeyPath) -> tuple[dict[Any, Any], list[KeyPath]]:
    """The merged mapping, and the paths of values of `below` that are wholly replaced."""
    data, replaced = dict(below), []
    spelled = {str(key): key for key in below}
    for written, value in above.items():
        key = spelled.get(str(written), written)
        here = (*path, str(key))
        old = data.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("use", old.get("use")) == old.get("use"):
            data[key], inner = _merge(old, value, here)
            replaced += inner
        else:
            data[key] = value
            replaced.append(here)
    return data, replaced


def override_documents(settings: Sequence[str]) -> tuple[list[Document], list[Problem]]:
    """A document for each `a.b=value`, in an order in which a whole part and its `use` come before its options."""
    documents, problems = [], []
    for setting in settings:
        origin = Origin(f"--set {setting if len(setting) <= MAX_SHOWN else setting[: MAX_SHOWN - 3] + '...'}")
        key, equals, text = setting.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            problems.append(Problem(origin, "", "expected KEY=VALUE with a dotted key, such as tree.nodes=24"))
            continue
        if len(names) > MAX_DEPTH or any(len(name) > MAX_DIGITS for name in names):
            problems.append(
                Problem(origin, "", f"got a key of {len(key)} characters, expected at most {MAX_DEPTH} short words")
            )
            continue
        if names[0] == "extends":
            problems.append(Problem(origin, "extends", "is read from the file alone; name another strategy instead"))
            continue
        try:
            value = read_value(text, str(origin))
        except SpecError as error:
            problems.append(Problem(origin, "", str(error).removeprefix(f"{origin}:1: ").removeprefix(f"{origin}: ")))
            continue
        documents.append(at_key(names, value, origin))
    return wholes_first(documents), problems


def wholes_first(documents: Sequence[Document]) -> list[Document]:
    """Overrides in an order in which none drops another: whole mappings, and `use`, before the keys inside."""
    return sorted(documents, key=_depth)


def _depth(document: Document) -> int:
    """Names in the key of an override; `use` stands for the part itself."""
    path = max(document.origins, key=len)
    return len(path) - (path[-1:] == ("use",))


def at_key(names: Sequence[str], value: Any, origin: Origin) -> Document:
    """A document with one value at a dotted key."""
    data: Any = value
    for name in reversed(names):
        data = {int(name) if name.isdecimal() else name: data}
    return Document(data, {(): origin, tuple(names): origin})
