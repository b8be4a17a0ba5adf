"""When a sequence ends: stop ids, stop sequences, stop strings and the limit, looked at token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from specdec.decoding.detokenizer import Detokenizer, certain_length, find_stop
from specdec.interfaces.text_codec import TextCodec

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
    """Why a sequence ended: 'stop' with its cause, 'length', or 'cancelled'."""

    reason: str
    cause: StopCause | None = None


class Emitted:
    """The tokens of one answer, and its text where the target has a codec."""

    __slots__ = ("_detokenizer", "_ends", "_rules", "_shown", "_text_end", "_token", "finish", "tokens")

    def __init__(self, rules: StopRules, codec: TextCodec | None, *, skip_special_tokens: bool = True) -> None:
        self._rules = rules
        self._detokenizer = None if codec is None else Detokenizer(codec, skip_special_tokens=skip_special_tokens)
        self._shown = self._token = 0
        self._ends: list[int] = []
        self._text_end: int | None = None
        self.tokens: list[int] = []
        self.finish: Finish | None = Finish("length") if rules.limit <= 0 else None

    def push(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the first that ends the sequence; returns how many were taken."""
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            self.finish = self._stopped(token) or (Finish("length") if len(self.tokens) >= self._rules.limit else None)
            if self._detokenizer is not None:
                self._ends.append(len(self._detokenizer.text))
            if self.finish is not None:
                self._close()
                return count
        return len(tokens)

    def cancel(self) -> None:
        """End here, with the text so far; nothing happens to a sequence that has ended."""
        if self.finish is None:
            self.finish = Finish("cancelled")
            if self.tokens:
                self._close()

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
        pen = self._detokenizer
        if pen is None or not self._rules.strings:
            return None
        found = find_stop(pen.text, self._rules.strings, since=searched, skipped=pen.skipped)
        if found is None:
            return None
        self._text_end, stop = found
        return Finish("stop", stop)

    def _close(self) -> None:
        pen = self._detokenizer
        if pen is None:
            return
        if self._text_end is None:
            searched = len(pen.text)
            pen.finish()
            late = self._found_string(searched) if self.finish is not None and self.finish.reason == "length" else None
            self.finish = late or self.finish
        self._ends[-1] = len(pen.text)

    @property
    def text(self) -> str | None:
        """The text so far: without a stop id's token, cut before a stop string; None without a codec."""
        return None if self._detokenizer is None else self._detokenizer.text[: self._text_end]

    def token_texts(self, count: int) -> tuple[str, ...]:
        """What each of the last `count` tokens added to the text; an unfinished character comes with what completes it.

        A stop id's token adds nothing. Empty without a codec.
        """
        text, first = self.text or "", len(self._ends) - count
        places = [self._ends[first - 1] if first > 0 else 0, *self._ends[max(first, 0) :]]
        return tuple(text[begin:end] for begin, end in pairwise(places))

    def new_text(self) -> str:
        """What may be shown since the last call; the possible beginning of a stop string is held back until the end."""
        return "".join(text for text, _ in self.new_pieces())

    def new_pieces(self) -> list[tuple[str, int]]:
        """`new_text` token by token: (text, which of `tokens` it comes from)."""
        text, end = self.text or "", self._certain_end()
        pieces = []
        while self._shown < end:
            piece = text[self._shown : min(self._ends[self._token], end)]
            if piece:
                pieces.append((piece, self._token))
            self._shown += len(piece)
            if self._shown >= self._ends[self._token]:
                self._token += 1
        return pieces

    def _certain_end(self) -> int:
        pen = self._detokenizer
        if pen is None:
            return 0
        if self.finish is not None:
            return len(pen.text[: self._text_end])
        return max(self._shown, certain_length(pen.text, self._rules.strings, skipped=pen.skipped))
