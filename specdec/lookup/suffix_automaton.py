"""A suffix automaton of a text that grows: every substring, how often it occurred, and what followed it."""

from collections.abc import Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """A substring: the state that holds it, and its length in tokens."""

    state: int
    length: int


START = Place(0, 0)
"""The empty substring."""


class SuffixAutomaton:
    """The smallest automaton that knows all substrings of the text, extended token by token.

    Occurrences are counted for substrings of at most `longest` tokens and their followers, so that a token costs at most that
    many steps, however the text repeats itself; there are at most two states a token.
    *Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985), on-line construction.*
    """

    __slots__ = ("_counted", "_counts", "_end", "_last", "_latest", "_lengths", "_links", "_next", "longest")

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        self._counts = [0]
        self._latest = [0]
        self._last = 0
        self._end = 0
        self._counted = START

    def __len__(self) -> int:
        """Tokens of the text."""
        return self._end

    @property
    def suffix(self) -> Place:
        """The end of the text: its longest suffix of at most `longest` tokens."""
        return self._cut(self._counted, self.longest)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        self._end += 1
        new = self._state(self._lengths[self._last] + 1, {})
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._links[state]
        self._links[new] = 0 if state < 0 else self._split(state, token)
        self._last = new
        self._counted = self._step(self._counted, token, self.longest + 1)
        self._count(self._counted.state)

    def _state(self, length: int, following: dict[int, int]) -> int:
        self._next.append(following)
        self._links.append(0)
        self._lengths.append(length)
        self._counts.append(0)
        self._latest.append(0)
        return len(self._links) - 1

    def _split(self, state: int, token: int) -> int:
        """The state of the longest substring of `state`, followed by `token`: a part of an older one, which it leaves."""
        older = self._next[state][token]
        if self._lengths[older] == self._lengths[state] + 1:
            return older
        part = self._state(self._lengths[state] + 1, dict(self._next[older]))
        self._links[part] = self._links[older]
        self._counts[part] = self._counts[older]
        self._latest[part] = self._latest[older]
        self._links[older] = part
        while state >= 0 and self._next[state].get(token) == older:
            self._next[state][token] = part
            state = self._links[state]
        return part

    def _count(self, state: int) -> None:
        """Count the end of the text as an occurrence of all its suffixes."""
        while state > 0:
            self._counts[state] += 1
            self._latest[state] = self._end
            state = self._links[state]

    def step(self, place: Place, token: int) -> Place:
        """The longest suffix of `place` and `token` that occurs, of at most `longest` tokens; `START` where there is none."""
        return self._step(place, token, self.longest)

    def _step(self, place: Place, token: int, longest: int) -> Place:
        state, length = place
        while state > 0 and token not in self._next[state]:
            state = self._links[state]
            length = self._lengths[state]
        if token not in self._next[state]:
            return START
        return self._cut(Place(self._next[state][token], length + 1), longest)

    def _cut(self, place: Place, longest: int) -> Place:
        """The suffix of `place` of at most `longest` tokens."""
        state, length = place.state, min(place.length, longest)
        while state > 0 and self._lengths[self._links[state]] >= length:
            state = self._links[state]
        return Place(state, length)

    def followed(self, place: Place) -> Place:
        """The longest suffix of `place` that something followed; `START` where only the empty one did."""
        state, length = place
        while state > 0 and not self._next[state]:
            state = self._links[state]
            length = self._lengths[state]
        return Place(state, length)

    def shorter(self, place: Place) -> Place:
        """The longest proper suffix of `place` that occurs at more places."""
        state = max(self._links[place.state], 0)
        return Place(state, self._lengths[state])

    def followers(self, place: Place) -> list[tuple[int, int, int]]:
        """(token, times it followed `place`, end of the latest of them), in no order that means anything."""
        counts, latest = self._counts, self._latest
        return [(token, counts[state], latest[state]) for token, state in self._next[place.state].items()]
