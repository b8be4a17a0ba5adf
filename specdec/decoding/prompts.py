"""From a prompt to ids: texts, id lists and conversations, looked at before a tokenizer or a template sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.decoding.prompt_forms import is_list, plain_turn
from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec

ROLES = ("system", "user", "assistant", "tool", "developer")
"""Who may speak; most templates copy any word into the prompt, where the model has never seen it."""


def encode(
    prompt: Any, codec: TextCodec | None, chat_format: ChatFormat = PLAIN_CHAT, *, refuse_control_tokens: bool = False
) -> list[int]:
    """Ids of a text, an id list or a conversation. Raises SpecError for anything else."""
    if is_list(prompt) and all(type(t) is int for t in prompt):
        _no_conversation(chat_format)
        return list(prompt)
    if codec is None:
        raise SpecError("this target has no tokenizer: give the prompt as a list of token ids")
    if isinstance(prompt, str):
        _no_conversation(chat_format)
        check_text(prompt, "prompt")
        if refuse_control_tokens:
            _refuse_control_tokens(prompt, "prompt", codec)
        return codec.encode(prompt, escape_control_tokens=chat_format.escape_control_tokens)
    if is_list(prompt) and all(isinstance(turn, Mapping) for turn in prompt):
        return _conversation(prompt, codec, chat_format, refuse_control_tokens=refuse_control_tokens)
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


def _conversation(
    turns: Sequence[Mapping[str, Any]], codec: TextCodec, chat_format: ChatFormat, *, refuse_control_tokens: bool
) -> list[int]:
    turns = [plain_turn(turn, f"prompt: turn {number}") for number, turn in enumerate(turns)]
    for number, turn in enumerate(turns):
        check_turn(turn, f"prompt: turn {number}")
        if refuse_control_tokens:
            _refuse_control_tokens(turn["content"], f"prompt: turn {number}", codec)
    _check_end(turns, continues=chat_format.continue_final_message)
    try:
        return codec.chat(turns, chat_format)
    except SpecdecError:
        raise
    except Exception as error:
        raise SpecError(f"prompt: the chat template refuses the conversation: {error}") from error


def _check_end(turns: Sequence[Mapping[str, Any]], *, continues: bool) -> None:
    """Raise SpecError for an assistant's last turn that nobody asked to continue, and for one to continue that is not there."""
    answered = bool(turns) and turns[-1]["role"] == "assistant"
    if answered and not continues:
        raise SpecError(
            "prompt: the conversation ends with a turn of the assistant; continue_final_message=True continues that turn, "
            "and without it the last turn must be another's"
        )
    if continues and not answered:
        raise SpecError("continue_final_message: the conversation does not end with a turn of the assistant to continue")


def _no_conversation(chat_format: ChatFormat) -> None:
    """Raise SpecError for options of the chat template beside a prompt that does not go through it."""
    for name, given in (
        ("chat_template_kwargs", chat_format.arguments),
        ("continue_final_message", chat_format.continue_final_message),
    ):
        if given:
            raise SpecError(f"{name}: the prompt is no conversation, so that the chat template is not used")


def _refuse_control_tokens(text: str, here: str, codec: TextCodec) -> None:
    found = [token for token in codec.control_tokens if token in text]
    if found:
        first = min(found, key=text.find)
        raise SpecError(f"{here}: has the control token {first!r}; control_tokens='escape' makes it ordinary text")
