"""What a question looks like to the model, turn after turn."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specdec.bench.prompts import Question
from specdec.decoding.detokenizer import text_of
from specdec.decoding.prompts import encode
from specdec.errors import SpecdecError, SpecdecWarning, SpecError, TargetMismatch
from specdec.interfaces.results import TargetFacts
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec


@dataclass(frozen=True, slots=True)
class Said:
    """An earlier answer: its ids (a final stop token included) and its text, special tokens included."""

    tokens: tuple[int, ...]
    text: str | None


def has_room(question: Question, length: int, room: int, facts: TargetFacts) -> bool:
    """Whether a prompt of `length` tokens and `room` tokens of an answer fit into the context; a SpecdecWarning where not."""
    if facts.max_positions is None or length + room <= facts.max_positions:
        return True
    needed = f"{length} tokens and {room} of an answer; the context holds {facts.max_positions}"
    warnings.warn(f"question {question.key} is left out: {needed}", SpecdecWarning, stacklevel=2)
    return False


class Prompter:
    """Ids of a question's turn, given the answers to the turns before."""

    def __init__(
        self,
        codec: TextCodec | None,
        *,
        chat: bool | None,
        chat_format: ChatFormat = PLAIN_CHAT,
        stop_ids: Collection[int] = (),
    ) -> None:
        """Raises TargetMismatch where a chat template is asked for and there is none. stop_ids: those that end an answer."""
        self._codec = codec
        self._chat_format = chat_format
        self._stop_ids = stop_ids
        self.uses_chat = chat is not False and self._has_template(required=bool(chat))

    def ids(self, question: Question, said: Sequence[Said]) -> tuple[int, ...]:
        """The prompt of turn number len(said). Without a template, turns and answers follow each other with nothing between.

        Errors say which question it is.
        """
        try:
            return self._ids(question, said)
        except SpecdecError as error:
            raise SpecError(f"question {question.key}: {error}") from error

    def _ids(self, question: Question, said: Sequence[Said]) -> tuple[int, ...]:
        turns = question.turns[: len(said) + 1]
        if self.uses_chat:
            messages = [{"role": "system", "content": question.system}] if question.system else []
            for turn, answer in zip(turns, said, strict=False):
                messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer.text or ""}]
            return tuple(encode([*messages, {"role": "user", "content": turns[-1]}], self._codec, self._chat_format))
        opening = question.system or ""
        if self._codec is not None:
            pairs = (text for turn, answer in zip(turns, said, strict=False) for text in (turn, answer.text or ""))
            return tuple(encode("".join([opening, *pairs, turns[-1]]), self._codec))
        ids = _numbers(opening)
        for turn, answer in zip(turns, said, strict=False):
            ids += [*_numbers(turn), *answer.tokens]
        return (*ids, *_numbers(turns[-1]))

    def said(self, tokens: Sequence[int]) -> Said:
        """An answer as the turns after it repeat it."""
        if self._codec is None:
            return Said(tuple(tokens), None)
        return Said(tuple(tokens), text_of(self._codec, tokens, stop_ids=self._stop_ids, skip_special_tokens=False))

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of an answer whose contender gives ids only, as a decoder of ours gives it."""
        if self._codec is None:
            return None
        return text_of(self._codec, tokens, stop_ids=self._stop_ids, skip_special_tokens=True)

    def _has_template(self, *, required: bool) -> bool:
        try:
            encode([{"role": "user", "content": "a"}], self._codec, self._chat_format)
        except (TargetMismatch, SpecError):
            if required or self._chat_format.arguments:
                raise
            return False
        return True


def _numbers(text: str) -> list[int]:
    """Token ids written as numbers, for a target without a tokenizer."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and len(word) < 19 for word in words):
        raise SpecError("this target has no tokenizer; expected token ids, such as '1 2 3'")
    return [int(word) for word in words]
