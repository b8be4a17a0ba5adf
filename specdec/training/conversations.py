"""Conversations from JSON lines, as token ids with a mask of what the assistant said."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.decoding.prompts import check_turn
from specdec.errors import SpecError
from specdec.files.jsonl import parse_json, text_lines
from specdec.training.loss_mask import LossMask

Messages = list[dict[str, str]]

EXPECTED = "expected 'messages', or 'question' and 'answer'"


@dataclass(frozen=True, slots=True)
class Conversation:
    """token_ids, and for each whether the assistant said it (end-of-turn token included).

    key: hash of the user's words. left_out: turns of the assistant that could not be told: (number of the message, why).
    """

    token_ids: tuple[int, ...]
    spoken: tuple[bool, ...]
    key: str
    left_out: tuple[tuple[int, str], ...] = ()

    @property
    def teaches_nothing(self) -> bool:
        """Whether no turn of the assistant could be told."""
        return bool(self.left_out) and not any(self.spoken)

    @property
    def judged(self) -> tuple[bool, ...]:
        """For each token whether the target's distribution there is about a word of the assistant."""
        return (*self.spoken[1:], False)


def read_messages(path: Path, *, temperature: float | None = None, answered: bool = True) -> Iterator[Messages]:
    """The messages of each line: `{"messages": [...]}` or `{"question": ..., "answer": ...}`. Raises SpecError by line.

    temperature: only lines that name this `temperature`. answered: whether a `question` needs its `answer`.
    """
    return (messages for _, messages in numbered_messages(path, temperature=temperature, answered=answered))


def numbered_messages(
    path: Path,
    *,
    temperature: float | None = None,
    answered: bool = True,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, Messages]]:
    """As `read_messages`, each with where it stands (`FILE:LINE`).

    chat_template_kwargs: what the answers are to be rendered with; a line that names others is an error.
    """
    for where, line in text_lines(path):
        record = _record(line, where)
        if temperature is None or record.get("temperature") == temperature:
            used = record.get("chat_template_kwargs", chat_template_kwargs)
            if chat_template_kwargs is not None and used != chat_template_kwargs:
                raise SpecError(
                    f"{where}: was answered with chat_template_kwargs {used}, and data.chat_template_kwargs is "
                    f"{dict(chat_template_kwargs)}; they must be the same"
                )
            yield where, messages_of(record, where, answered=answered)


def encode(messages: Messages, mask: LossMask, max_tokens: int) -> Conversation:
    """Token ids by the chat template, cut to `max_tokens`.

    Raises SpecError for a conversation without an assistant, and for one that the template refuses.
    """
    if not any(message["role"] == "assistant" for message in messages):
        raise SpecError("a conversation without a word of the assistant: nothing to learn from")
    found = mask.of(messages)
    ids, spoken = found.token_ids[:max_tokens], found.spoken[:max_tokens]
    return Conversation(ids, spoken, prompt_key(messages), found.left_out)


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
        record = parse_json(line)
    except ValueError as error:
        raise SpecError(f"{where}: {EXPECTED}; the line is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise SpecError(f"{where}: {EXPECTED}; got a {type(record).__name__}")
    return record


def messages_of(record: dict[str, Any], where: str, *, answered: bool = True) -> Messages:
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
