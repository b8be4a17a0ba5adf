"""The responses of the two endpoints, whole and in chunks."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.decoding.callbacks import StreamEvent
from specdec.interfaces.results import Generation, TokenLogprobs
from specdec.serving.token_words import TokenWords
from specdec.serving.usage import Usage


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a response is to hold beside the text."""

    logprobs: bool = False
    token_ids: bool = False
    draft_sources: bool = False
    usage: bool = False
    running_usage: bool = False


@dataclass(slots=True)
class AnswerFormat(ABC):
    """How answers are written. id, model: of the response. sent: by choice, characters that have been sent.

    opening: of every chunk, which is the same each time.
    """

    id: str
    model: str
    version: str
    words: TokenWords
    wanted: Wanted
    created: int = field(default_factory=lambda: int(time.time()))
    sent: dict[int, int] = field(default_factory=dict)
    opening: str = ""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, str]:
        """`object` of a whole response, and of a chunk."""

    @abstractmethod
    def message(self, text: str) -> dict[str, Any]:
        """The part of a whole choice that holds the text."""

    @abstractmethod
    def delta(self, text: str, *, opens: bool) -> dict[str, Any]:
        """The part of a chunk's choice that holds new text. opens: of the first chunk of a choice."""

    @abstractmethod
    def logprobs(self, logprobs: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        """Those of a choice. offset: characters of text before."""

    def whole(self, generations: Sequence[Generation], usage: Usage) -> dict[str, Any]:
        """The response with all answers."""
        choices = [
            {"index": index, **self.message(one.text or ""), **self._told(one.logprobs, 0), **self._ids(one.tokens)}
            | self._end(one)
            for index, one in enumerate(generations)
        ]
        return {**self._head(self.kinds[0]), "choices": choices, "usage": usage.body()}

    def chunks(self, index: int, event: StreamEvent, usage: Usage) -> bytes:
        """The events of server-sent events for what is new about a choice; nothing where nothing can be shown yet."""
        opens, done = index not in self.sent, event.generation is not None
        wanted = self.wanted
        if not (event.text or opens or done or (event.tokens and (wanted.logprobs or wanted.token_ids))):
            return b""
        offset = self.sent.get(index, 0)
        self.sent[index] = offset + len(event.text)
        choice = {"index": index, **self.delta(event.text, opens=opens), **self._told(event.logprobs, offset)}
        choice |= self._ids(event.tokens)
        if wanted.draft_sources:
            pieces = zip(event.pieces, event.depths, strict=True)
            choice["pieces"] = [[text, source, depth] for (text, source), depth in pieces]
        choice |= self._end(event.generation) if event.generation is not None else {"finish_reason": None}
        return self._chunk([choice], usage.body() if wanted.running_usage else None)

    def last(self, usage: Usage) -> bytes:
        """What ends the stream."""
        closing = self._chunk([], usage.body()) if self.wanted.usage else b""
        return closing + b"data: [DONE]\n\n"

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        if not self.opening:
            self.opening = f"data: {json_text(self._head(self.kinds[1]))[:-1]}"
        shown = f',"usage":{json_text(usage)}' if self.wanted.usage or usage is not None else ""
        return f'{self.opening},"choices":{json_text(choices)}{shown}}}\n\n'.encode()

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"specdec-{self.version}",
        }

    def _told(self, logprobs: Sequence[TokenLogprobs] | None, offset: int) -> dict[str, Any]:
        return {"logprobs": self.logprobs(logprobs or (), offset) if self.wanted.logprobs else None}

    def _ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self.wanted.token_ids else {}

    def _end(self, generation: Generation) -> dict[str, Any]:
        stopped = generation.stopped_by
        return {
            "finish_reason": generation.finish_reason,
            "stop_reason": list(stopped) if isinstance(stopped, tuple) else stopped,
            "seed": generation.seed,
        }


class ChatFormat(AnswerFormat):
    """/v1/chat/completions."""

    @property
    def kinds(self) -> tuple[str, str]:
        return "chat.completion", "chat.completion.chunk"

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, *, opens: bool) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": text} if opens else {"content": text}}

    def logprobs(self, logprobs: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        return self.words.chat(logprobs)


class CompletionFormat(AnswerFormat):
    """/v1/completions."""

    @property
    def kinds(self) -> tuple[str, str]:
        return "text_completion", "text_completion"

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str, *, opens: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, logprobs: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        return self.words.completion(logprobs, offset)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def json_text(value: Any) -> str:
    """Short JSON, by an encoder that is made once."""
    return _ENCODER.encode(value)


def event_bytes(data: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json_text(data)}\n\n".encode()
