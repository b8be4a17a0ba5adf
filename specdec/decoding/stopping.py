"""When a sequence ends: stop ids, stop sequences, stop strings and the limit, looked at token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specdec.decoding.detokenizer import Detokenizer, certain_length, find_stop
from specdec.interfaces.parts import TextCodec

StopCause: TypeAlias = int | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopRules:
    """limit: tokens at most. A stop that falls on the limit is a stop."""

    limit: int
    ids: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()
    strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended: 'stop' with its cause, or 'length'."""

    reason: str
    cause: StopCause | None = None


class Emitted:
    """The tokens of one answer, and its text where the target has a codec."""

    __slots__ = ("_detokenizer", "_rules", "_shown", "_text_end", "finish", "tokens")

    def __init__(self, rules: StopRules, codec: TextCodec | None) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(codec) if codec is not None else None
        self._shown = 0
        self._text_end: int | None = None
        self.tokens: list[int] = []
        self.finish: Finish | None = Finish("length") if rules.limit <= 0 else None

    def push(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the first that ends the sequence; returns how many were taken."""
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            self.finish = self._stopped(token) or (Finish("length") if len(self.tokens) >= self._rules.limit else None)
            if self.finish is not None:
                self._close()
                return count
        return len(tokens)

    def _stopped(self, token: int) -> Finish | None:
        if token in self._rules.ids:
            return Finish("stop", token)
        searched = len(self._detokenizer.text) if self._detokenizer is not None else 0
        if self._detokenizer is not None:
            self._detokenizer.push(token)
        for sequence in self._rules.sequences:
            if tuple(self.tokens[-len(sequence) :]) == sequence:
                return Finish("stop", sequence)
        return self._found_string(searched)

    def _found_string(self, searched: int) -> Finish | None:
        if self._detokenizer is None or not self._rules.strings:
            return None
        found = find_stop(self._detokenizer.text, self._rules.strings, since=searched)
        if found is None:
            return None
        self._text_end, stop = found
        return Finish("stop", stop)

    def _close(self) -> None:
        if self._detokenizer is not None and self._text_end is None:
            searched = len(self._detokenizer.text)
            self._detokenizer.finish()
            late = self._found_string(searched) if self.finish is not None and self.finish.reason == "length" else None
            self.finish = late or self.finish

    @property
    def text(self) -> str | None:
        """The text so far: without a stop id's token, cut before a stop string; None without a codec."""
        return None if self._detokenizer is None else self._detokenizer.text[: self._text_end]

    def new_text(self) -> str:
        """What may be shown since the last call; the possible beginning of a stop string is held back until the end."""
        text = self.text or ""
        end = len(text) if self.finish is not None else max(self._shown, certain_length(text, self._rules.strings))
        shown, self._shown = self._shown, end
        return text[shown:end]
