"""YAML text as nodes, within limits that every strategy and tree file keeps and that no hostile one gets past."""

import yaml

from specdec.errors import SpecError

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
        faults = _faults(text, source)
        if faults:
            raise SpecError("\n".join(faults))
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{source}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: not YAML: {str(error).partition(chr(10))[0]}") from error


def _faults(text: str, source: str) -> list[str]:
    """What is refused, from the events, which are read without recursion and without following an alias."""
    faults = []
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
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
