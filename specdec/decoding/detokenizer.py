"""Text that grows token by token: incremental detokenising and stop strings."""

from collections.abc import Sequence

from specdec.interfaces.parts import TextCodec

_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Turns tokens into text as they come; an unfinished character is held back until it is whole.

    Only a short window is decoded again per token, so the cost does not grow with the text.
    """

    __slots__ = ("_codec", "_read", "_start", "_tokens", "text")

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._tokens: list[int] = []
        self._start = 0
        self._read = 0
        self.text = ""

    def push(self, token: int) -> None:
        """Append one token; `text` grows by what has become certain."""
        self._tokens.append(token)
        before = self._codec.decode(self._tokens[self._start : self._read])
        after = self._codec.decode(self._tokens[self._start :])
        if len(after) > len(before) and not after.endswith(_INCOMPLETE):
            self.text += after[len(before) :]
            self._start, self._read = self._read, len(self._tokens)

    def finish(self) -> None:
        """Nothing more will come: what was held back is shown as it is."""
        before = self._codec.decode(self._tokens[self._start : self._read])
        self.text += self._codec.decode(self._tokens[self._start :])[len(before) :]
        self._start = self._read = len(self._tokens)


def find_stop(text: str, stops: Sequence[str], *, since: int) -> tuple[int, str] | None:
    """Where in `text` the earliest stop string begins, and which it is; text before `since` was searched already.

    Of several that begin at one place the longest is named.
    """
    found = None
    for stop in stops:
        at = text.find(stop, max(0, since - len(stop) + 1))
        if at >= 0 and (found is None or (at, -len(stop)) < (found[0], -len(found[1]))):
            found = (at, stop)
    return found


def certain_length(text: str, stops: Sequence[str]) -> int:
    """How much of `text` may be shown: its end is held back while it could be the beginning of a stop string."""
    held = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:size]):
                held = size
                break
    return len(text) - held
