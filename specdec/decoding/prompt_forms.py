"""The forms in which prompts may be given: one or several; texts, ids, tensors, encodings of a tokenizer, conversations."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import SpecError

FORMS = "a text, ids (a list or a tensor), a conversation, an encoding of a tokenizer, a Request, or a list of these"


def is_list(value: Any) -> bool:
    """Whether a value is a list of things: a text is none, and neither are bytes, whose items are numbers by accident."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def as_prompts(given: Any) -> Sequence[Any]:
    """The prompts of a call: those of a list or of the rows of a tensor or an encoding, or the only one.

    Raises SpecError for what is neither.
    """
    rows = _rows(given)
    if rows is not None:
        return rows
    if is_list(given):
        return [given] if given and isinstance(given[0], int | Mapping) and not _is_encoding(given[0]) else given
    if isinstance(given, str):
        return [given]
    raise SpecError(f"prompts: got {type(given).__name__}; expected {FORMS}")


def as_prompt(given: Any) -> Any:
    """One prompt: a tensor or an encoding as the list of its ids, anything else as it is. Raises SpecError for several rows."""
    rows = _rows(given)
    if rows is None:
        return given
    if len(rows) != 1:
        raise SpecError(f"prompt: got {type(given).__name__} of {len(rows)} rows; expected one prompt")
    return rows[0]


def _is_encoding(value: Any) -> bool:
    return isinstance(value, Mapping) and "input_ids" in value


def _rows(given: Any) -> list[list[Any]] | None:
    """The ids of a tensor, an array or an encoding, row by row and without padding; None for anything else."""
    mask = None
    if _is_encoding(given):
        given, mask = given["input_ids"], given.get("attention_mask")
    elif not _is_array(given):
        return None
    rows = _nested(given)
    if mask is None:
        return rows
    kept = zip(rows, _nested(mask), strict=True)
    return [[token for token, keep in zip(row, kept_row, strict=True) if keep] for row, kept_row in kept]


def _is_array(value: Any) -> bool:
    """A tensor of torch or an array of numpy."""
    return hasattr(value, "tolist") and hasattr(value, "ndim")


def _nested(given: Any) -> list[list[Any]]:
    if _is_array(given):
        if given.ndim not in (1, 2):
            raise SpecError(
                f"prompts: got {type(given).__name__} of {given.ndim} dimensions; expected 1 (ids) or 2 (a row a prompt)"
            )
        given = given.tolist()
    if not is_list(given):
        raise SpecError(f"prompts: got input_ids of {type(given).__name__}; expected ids")
    return [list(row) for row in given] if given and all(map(is_list, given)) else [list(given)]


def plain_turn(turn: Mapping[str, Any], here: str) -> Mapping[str, Any]:
    """A turn whose content is a text: parts of type text are joined. Raises SpecError for parts of another type."""
    content: Any = turn.get("content")
    if not is_list(content):
        return turn
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise SpecError(f"{here}: content has a part of type {kind!r}; expected {{'type': 'text', 'text': ...}}")
    return {**turn, "content": "".join(part["text"] for part in content)}
