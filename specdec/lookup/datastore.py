"""A datastore: a large fixed text, sorted so that every earlier occurrence of a context is found in microseconds."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy
from numpy.typing import NDArray

from specdec.errors import SpecError
from specdec.lookup.array_files import read_arrays, write_arrays

CONTEXT = 16
"""Tokens of context by which places are sorted, so that no longer match is found."""

SAMPLE = 256
"""Places that are looked at where a context has occurred more often; they are spread evenly."""

END = -1
"""Between two texts: no token, so that no context reaches across."""

KIND = "datastore"

Ids = NDArray[numpy.int32]


class Datastore:
    """Texts, and where what was said before a place leads.

    tokens: CONTEXT times END, then the texts, END after each. order: all places in texts, sorted by the tokens before them,
    read backwards; a place is the index of the token that follows. vocabulary: fingerprint of the ids' tokenizer.
    *Source: REST, arXiv 2311.08252; suffix arrays, here of the reversed text.*
    """

    __slots__ = ("_last", "_order", "_tokens", "order", "tokens", "vocabulary")

    def __init__(self, tokens: Ids, order: Ids, vocabulary: str | None) -> None:
        self.tokens = tokens
        self.order = order
        self.vocabulary = vocabulary
        # Single items are read ten times faster from a memoryview than from an array.
        self._tokens, self._order = tokens.data, order.data
        self._last = numpy.ascontiguousarray(tokens[order - 1]).data

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return len(self.order)

    def matches(self, context: Sequence[int], count: int) -> list[tuple[int, list[tuple[int, float]]]]:
        """The longest suffixes of `context` that occur, the longest first: at most `count`, each with other occurrences.

        Of each: its length, and (token, times it followed). Past SAMPLE occurrences the numbers are extrapolated.
        """
        low, high = 0, len(self.order)
        found: list[tuple[int, int, int]] = []
        for depth, token in enumerate(reversed(context[-CONTEXT:])):
            low, high = self._narrowed(low, high, depth, token)
            if low == high:
                break
            if found and (found[-1][1], found[-1][2]) == (low, high):
                found.pop()
            found.append((depth + 1, low, high))
        return [(length, self._followers(low, high)) for length, low, high in reversed(found[-count:])]

    def _narrowed(self, low: int, high: int, depth: int, token: int) -> tuple[int, int]:
        """The places among order[low:high] before which `token` stands, `depth` tokens further back."""
        if depth == 0:
            return bisect_left(self._last, token), bisect_right(self._last, token)
        tokens, back = self._tokens, 1 + depth

        def before(place: int) -> int:
            return tokens[place - back]

        low = bisect_left(self._order, token, low, high, key=before)
        return low, bisect_right(self._order, token, low, high, key=before)

    def _followers(self, low: int, high: int) -> list[tuple[int, float]]:
        step = -(-(high - low) // SAMPLE)
        counts = Counter([self._tokens[place] for place in self._order[low:high:step]])
        return [(token, float(step * count)) for token, count in counts.items()]


def build_datastore(texts: Iterable[Sequence[int]], *, vocabulary: str | None) -> Datastore:
    """The datastore of texts that are given as ids. Raises SpecError where there is no token at all."""
    parts = [numpy.full(CONTEXT, END, dtype=numpy.int32)]
    for text in texts:
        parts.append(numpy.append(numpy.asarray(text, dtype=numpy.int32), numpy.int32(END)))
    tokens = numpy.concatenate(parts)
    places = numpy.flatnonzero(tokens != END).astype(numpy.int32)
    if not len(places):
        raise SpecError("the texts have no token: there is nothing to look up")
    ranks = _ranks(tokens)[places]
    return Datastore(tokens, places[numpy.argsort(ranks, kind="stable")], vocabulary)


def _ranks(tokens: Ids) -> NDArray[numpy.int64]:
    """By place, its rank by the CONTEXT tokens before it, read backwards; equal contexts share a rank. Prefix doubling."""
    before = numpy.concatenate([[END], tokens[:-1]]).astype(numpy.int64)
    ranks: NDArray[numpy.int64] = numpy.unique(before, return_inverse=True)[1].astype(numpy.int64)
    covered = 1
    while covered < CONTEXT:
        further = numpy.concatenate([numpy.zeros(covered, dtype=numpy.int64), ranks[:-covered]])
        ranks = numpy.unique(ranks * (int(ranks.max()) + 1) + further, return_inverse=True)[1].astype(numpy.int64)
        covered *= 2
    return ranks


def write_datastore(path: Path, store: Datastore) -> None:
    """Write the file that `read_datastore` reads back; it appears only when it is whole."""
    write_arrays(path, {"tokens": store.tokens, "order": store.order}, kind=KIND, vocabulary=store.vocabulary)


def read_datastore(path: str | Path) -> Datastore:
    """The datastore in a file. Raises SpecError for one that is none, or is damaged."""
    arrays, vocabulary = read_arrays(Path(path), {"tokens": "int32", "order": "int32"}, kind=KIND)
    tokens, order = arrays["tokens"], arrays["order"]
    whole = tokens.ndim == order.ndim == 1 and len(order) > 0 and bool((order >= CONTEXT).all())
    if not whole or int(order.max()) >= len(tokens) or bool((tokens[order] < 0).any()):
        raise SpecError(f"{path}: the datastore is damaged: its places do not lie in its texts; build it again")
    return Datastore(tokens, order, vocabulary)
