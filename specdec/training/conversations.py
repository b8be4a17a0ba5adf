"""Conversations from JSON lines, as token ids with a mask of what the assistant said."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.decoding.prompts import check_turn
from specdec.errors import SpecError

Messages = list[dict[str, str]]

EXPECTED = "expected 'messages', or 'question' and 'answer'"


@dataclass(frozen=True, slots=True)
class Conversation:
    """token_ids, and for each whether the assistant said it (end-of-turn token included). key: hash of the user's words."""

    token_ids: tuple[int, ...]
    spoken: tuple[bool, ...]
    key: str

    @property
    def judged(self) -> tuple[bool, ...]:
        """For each token whether the target's distribution there is about a word of the assistant."""
        return (*self.spoken[1:], False)


def read_messages(path: Path, *, temperature: float | None = None, answered: bool = True) -> Iterator[Messages]:
    """The messages of each line: `{"messages": [...]}` or `{"question": ..., "answer": ...}`. Raises SpecError by line.

    temperature: only lines that name this `temperature`. answered: whether a `question` needs its `answer`.
    """
    return (messages for _, messages in numbered_messages(path, temperature=temperature, answered=answered))


def numbered_messages(path: Path, *, temperature: float | None = None, answered: bool = True) -> Iterator[tuple[str, Messages]]:
    """As `read_messages`, each with where it stands (`FILE:LINE`)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        record = _record(line, where)
        if temperature is None or record.get("temperature") == temperature:
            yield where, _messages(record, where, answered=answered)


def encode(messages: Messages, tokenizer: Any, max_tokens: int) -> Conversation:
    """Token ids by the chat template, cut to `max_tokens`.

    Raises SpecError where the template is not a prefix code (so that no mask can be determined) or the mask is empty.
    """
    token_ids = _render(tokenizer, messages, generation_prompt=False)
    spoken = [False] * len(token_ids)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start = _prefix_length(tokenizer, messages[:turn], token_ids, generation_prompt=True)
        end = _prefix_length(tokenizer, messages[: turn + 1], token_ids, generation_prompt=False)
        end = _end_of_turn(tokenizer, token_ids, start, end)
        spoken[start:end] = [True] * (end - start)
    if not any(spoken):
        raise SpecError("a conversation without a word of the assistant: nothing to learn from")
    return Conversation(tuple(token_ids[:max_tokens]), tuple(spoken[:max_tokens]), prompt_key(messages))


def prompt_key(messages: Messages) -> str:
    """The same for all answers to the same question, so that a split never parts them."""
    words = "\x00".join(message["content"] for message in messages if message["role"] == "user")
    return hashlib.sha256(words.encode()).hexdigest()


def is_held_out(key: str, fraction: float) -> bool:
    """Whether a question belongs to the held-out part: by its words alone, whatever file it is in."""
    return int(key[:8], 16) < fraction * 0x1_0000_0000


def shuffled(conversations: Iterable[Conversation], seed: int) -> list[Conversation]:
    """In an order that depends on the seed and the conversations alone."""

    def place(conversation: Conversation) -> str:
        return hashlib.sha256(f"{seed}:{conversation.key}:{conversation.token_ids}".encode()).hexdigest()

    return sorted(conversations, key=place)


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: {EXPECTED}; the line is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise SpecError(f"{where}: {EXPECTED}; got a {type(record).__name__}")
    return record


def _messages(record: dict[str, Any], where: str, *, answered: bool) -> Messages:
    """The record's messages, each a known role's text. Raises SpecError."""
    if "messages" in record:
        turns = record["messages"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
            raise SpecError(f"{where}: {EXPECTED}; 'messages' is no list of at least one {{'role': ..., 'content': ...}}")
    else:
        names = {"question": "user", "answer": "assistant"} if answered else {"question": "user"}
        lacking = [name for name in names if not isinstance(record.get(name), str)]
        if lacking:
            raise SpecError(f"{where}: {EXPECTED}; {lacking[0]!r} is no text")
        turns = [{"role": role, "content": record[name]} for name, role in names.items()]
    for number, turn in enumerate(turns):
        check_turn(turn, f"{where}: turn {number}")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def _render(tokenizer: Any, messages: Sequence[dict[str, str]], *, generation_prompt: bool) -> list[int]:
    try:
        encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=generation_prompt, return_dict=True)
    except Exception as error:  # whatever the template's own code raises
        raise SpecError(f"the chat template refuses the conversation: {error}") from error
    return list(encoded["input_ids"])


def _prefix_length(tokenizer: Any, messages: Messages, token_ids: list[int], *, generation_prompt: bool) -> int:
    prefix = _render(tokenizer, messages, generation_prompt=generation_prompt)
    if token_ids[: len(prefix)] != prefix:
        raise SpecError(
            "the chat template renders the start of a conversation differently from the whole, so it cannot be told what the "
            "assistant said; a template without trailing rewriting would work"
        )
    return len(prefix)


def _end_of_turn(tokenizer: Any, token_ids: list[int], start: int, end: int) -> int:
    """Right after the turn's last special token, where there is one: what follows it the template writes, not the model."""
    special = set(tokenizer.all_special_ids)
    for place in range(end - 1, start - 1, -1):
        if token_ids[place] in special:
            return place + 1
    return end
