"""From tokens to text: the one way of the stream, the trace, the benchmark, training data and stop strings."""

from collections.abc import Collection, Sequence

from specdec.interfaces.text_codec import TextCodec

_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Turns tokens into text as they come; an unfinished character is held back until it is whole.

    Only a short window is decoded again per token, so the cost does not grow with the text.

    Attributes:
        text: What has become certain. Special tokens are part of it unless they are skipped.
        skipped: The special tokens that were left out: (where in `text` they would stand, what they are called).
    """

    __slots__ = ("_codec", "_read", "_skip", "_special", "_start", "_tokens", "skipped", "text")

    def __init__(self, codec: TextCodec, *, skip_special_tokens: bool = True) -> None:
        self._codec = codec
        self._special = codec.special_tokens
        self._skip = skip_special_tokens
        self._tokens: list[int] = []
        self._start = 0
        self._read = 0
        self.text = ""
        self.skipped: list[tuple[int, str]] = []

    def push(self, token: int) -> None:
        """Append one token; `text` grows by what has become certain."""
        if token in self._special:
            self._push_special(self._special[token])
            return
        self._tokens.append(token)
        before = self._codec.decode(self._tokens[self._start : self._read])
        after = self._codec.decode(self._tokens[self._start :])
        if len(after) > len(before) and not after.endswith(_INCOMPLETE):
            self.text += after[len(before) :]
            self._start, self._read = self._read, len(self._tokens)

    def finish(self) -> None:
        """Nothing more will come: what was held back is shown as it is."""
        if self._read < len(self._tokens):
            before = self._codec.decode(self._tokens[self._start : self._read])
            self.text += self._codec.decode(self._tokens[self._start :])[len(before) :]
            self._start, self._read = self._read, len(self._tokens)

    def _push_special(self, name: str) -> None:
        if self._skip:
            self.skipped.append((len(self.text), name))
        else:
            self.finish()
            self.text += name


def text_of(
    codec: TextCodec, tokens: Sequence[int], *, stop_ids: Collection[int] = (), skip_special_tokens: bool = False
) -> str:
    """The text of a whole answer, without the stop token that ended it.

    With its special tokens it encodes back to what was said: what training data and later turns of a conversation need.
    """
    said = tokens[:-1] if tokens and tokens[-1] in stop_ids else tokens
    detokenizer = Detokenizer(codec, skip_special_tokens=skip_special_tokens)
    for token in said:
        detokenizer.push(token)
    detokenizer.finish()
    return detokenizer.text


def token_text(codec: TextCodec | None, token: int) -> str:
    """A token by itself; its id where there is no tokenizer, or where it has no text."""
    if codec is None:
        return f"‹{token}›"
    return codec.special_tokens.get(token) or codec.decode([token]) or f"‹{token}›"


def find_stop(
    text: str, stops: Sequence[str], *, since: int, skipped: Sequence[tuple[int, str]] = ()
) -> tuple[int, str] | None:
    """Where in `text` the earliest stop string begins, and which it is; text before `since` was searched already.

    Of several that begin at one place the longest is named. skipped: special tokens that `text` lacks, as a Detokenizer keeps
    them; a stop string that holds the whole of one is found where it would stand.
    """
    found = None
    for stop in stops:
        at = text.find(stop, max(0, since - len(stop) + 1))
        if at >= 0 and (found is None or (at, -len(stop)) < (found[0], -len(found[1]))):
            found = (at, stop)
    if skipped:
        whole = _with_skipped(text, skipped)
        for stop in stops:
            around = _find_around(whole, stop, text, skipped)
            if around is not None and (found is None or (around, -len(stop)) < (found[0], -len(found[1]))):
                found = (around, stop)
    return found


def certain_length(text: str, stops: Sequence[str], *, skipped: Sequence[tuple[int, str]] = ()) -> int:
    """How much of `text` may be shown: its end is held back while it could be the beginning of a stop string."""
    held = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:size]):
                held = size
                break
    certain = len(text) - held
    if not skipped or not stops:
        return certain
    whole = _with_skipped(text, skipped)
    return min(certain, _place(certain_length(whole, stops), skipped)[0])


def _with_skipped(text: str, skipped: Sequence[tuple[int, str]]) -> str:
    pieces, at = [], 0
    for place, name in skipped:
        pieces += [text[at:place], name]
        at = place
    return "".join([*pieces, text[at:]])


def _place(whole_place: int, skipped: Sequence[tuple[int, str]]) -> tuple[int, bool]:
    """Where a place of the text with special tokens is in the text without, and whether it is inside of such a token."""
    shift = 0
    for place, name in skipped:
        begin = place + shift
        if whole_place <= begin:
            break
        if whole_place < begin + len(name):
            return place, True
        shift += len(name)
    return whole_place - shift, False


def _find_around(whole: str, stop: str, text: str, skipped: Sequence[tuple[int, str]]) -> int | None:
    """Where in `text` the first match in `whole` begins that cuts no special token in two."""
    at = whole.find(stop)
    while at >= 0:
        (begin, inside), (_, broken) = _place(at, skipped), _place(at + len(stop), skipped)
        if not inside and not broken:
            return min(begin, len(text))
        at = whole.find(stop, at + 1)
    return None
