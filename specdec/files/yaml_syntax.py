"""From a text to YAML nodes, within limits; where it is no YAML, the place, an excerpt, and the slip that is likely."""

import re
from typing import Any

import yaml

from specdec.errors import SpecError, listed

INDENT = "    "

SPACES = {
    "\u00a0": "a no-break space (U+00A0)",
    "\u2007": "a figure space (U+2007)",
    "\u200b": "a zero-width space (U+200B)",
    "\u202f": "a narrow no-break space (U+202F)",
    "\u3000": "an ideographic space (U+3000)",
    "\ufeff": "a byte order mark (U+FEFF)",
}
"""Characters that look like a space, or like nothing, and are letters to YAML."""

MAX_EXCERPT = 100
"""Characters of a line that are shown."""

MAX_DEPTH = 32
"""Levels of nesting."""

MAX_CHARACTERS = 1_000_000

_NO_SPACE = re.compile(r"""(?:^\s*(?:- )?|[{,]\s*)([\w.-]+):(?=[^\s:/\\])""")


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
    except yaml.YAMLError as error:
        raise SpecError(syntax_error(text, source, error)) from error


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


def strange_space(text: str) -> tuple[int, str] | None:
    """The index of the first character that only looks like a space, and its name."""
    return min(((text.find(space), name) for space, name in SPACES.items() if space in text), default=None)


def missing_space(line: str) -> str | None:
    """The key after whose colon a space is missing; None where there is none."""
    found = _NO_SPACE.search(line)
    return None if found is None else found[1]


def syntax_error(text: str, source: str, error: yaml.YAMLError) -> str:
    """The message: line and column, what the reader says, the line itself with a mark below, and a hint."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{source}: not YAML: {str(error).partition(chr(10))[0]}"
    said = getattr(error, "problem", None) or getattr(error, "context", None)
    lines = text.splitlines() or [""]
    number = min(mark.line, len(lines) - 1)
    hint = _hint(lines, number, str(said))
    message = f"{source}:{mark.line + 1}: not YAML: {said} (column {mark.column + 1})"
    shown = [*_excerpt(lines[number], mark.column), *([] if hint is None else [f"  {hint}"])]
    return "\n".join([message, *shown])


def _excerpt(line: str, column: int) -> list[str]:
    """The line around the column, and a mark below it."""
    start = max(0, column - MAX_EXCERPT // 2)
    part = line[start : start + MAX_EXCERPT].replace("\t", "\u2192").rstrip()
    if not part.isprintable():
        return []
    return [f"{INDENT}{part}", f"{INDENT}{' ' * (column - start)}^"] if part else []


def _hint(lines: list[str], number: int, said: str) -> str | None:
    """The likely slip, looked for in the line of the error and in the one before."""
    for at in (number, number - 1):
        if at < 0:
            continue
        line = lines[at]
        if (space := strange_space(line)) is not None:
            return f"line {at + 1}, column {space[0] + 1} is {space[1]}; an ordinary space would work"
        if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in said:
            return f"line {at + 1} is indented with a tab; YAML takes spaces only"
        if (key := missing_space(line)) is not None:
            return f"line {at + 1}: a space is missing after '{key}:'"
    opened = [(sign, line) for line, text in enumerate(lines[: number + 1], 1) for sign in re.findall(r"[\[{\]}]", text)]
    stack: list[tuple[str, int]] = []
    for sign, line_number in opened:
        if sign in "[{":
            stack.append((sign, line_number))
        elif stack:
            stack.pop()
    return f"'{stack[-1][0]}' of line {stack[-1][1]} is not closed" if stack else None
