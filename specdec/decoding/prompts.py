"""From a prompt to ids: texts, id lists and conversations, looked at before a tokenizer or a template sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.parts import TextCodec

ROLES = ("system", "user", "assistant", "tool", "developer")
"""Who may speak; most templates copy any word into the prompt, where the model has never seen it."""


def encode(prompt: Any, codec: TextCodec | None) -> list[int]:
    """Ids of a text, an id list or a conversation. Raises SpecError for anything else."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(type(t) is int for t in prompt):
        return list(prompt)
    if codec is None:
        raise SpecError("this target has no tokenizer: give the prompt as a list of token ids")
    if isinstance(prompt, str):
        check_text(prompt, "prompt")
        return codec.encode(prompt)
    if isinstance(prompt, Sequence) and all(isinstance(turn, Mapping) for turn in prompt):
        return _conversation(prompt, codec)
    raise SpecError(f"prompt: got {type(prompt).__name__}; expected a text, a list of ids or a conversation")


def check_text(text: str, name: str) -> None:
    """Raise SpecError for half a character, which no tokenizer takes. `name` is what the error calls the text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SpecError(f"{name}: the character {text[error.start]!r} at {error.start} is half a pair: no Unicode") from error


def check_turn(turn: Mapping[str, Any], here: str) -> None:
    """Raise SpecError for a turn that is not a known role's text. `here` is what the error calls it."""
    for key in ("role", "content"):
        if key not in turn:
            raise SpecError(f"{here} has no '{key}'; expected {{'role': ..., 'content': ...}}")
        if not isinstance(turn[key], str):
            raise SpecError(f"{here}: {key} is {type(turn[key]).__name__}; expected a text")
        check_text(turn[key], f"{here}: {key}")
    if turn["role"] not in ROLES:
        raise SpecError(f"{here}: role {turn['role']!r} is not known; known are {', '.join(ROLES)}")


def _conversation(turns: Sequence[Mapping[str, Any]], codec: TextCodec) -> list[int]:
    for number, turn in enumerate(turns):
        check_turn(turn, f"prompt: turn {number}")
    try:
        return codec.chat(turns)
    except SpecdecError:
        raise
    except Exception as error:
        raise SpecError(f"prompt: the chat template refuses the conversation: {error}") from error
