"""`ngram`: prompt lookup, with an estimate of how far each match is to be believed."""

import math
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored
from specdec.trees.draft_tree import TreeSketch

NOVELTY = 2.0
"""Weight, in occurrences, of 'something else follows', divided by the length of the match.

Measured on 107,000 tokens of a 135M chat model's own greedy answers. After a longest match of 1, 2, 3, 4, 5, 6, 8 or more
tokens that occurred once, the same token follows in 29, 57, 64, 69, 73, 79, 89 % of the cases; the estimate says 33, 50, 60,
67, 71, 75, 80 %.
"""

PATIENCE = 15.0
"""Tests, in units of expected hits, after which a request's own success weighs as much as NOVELTY's general one."""


class NgramOptions(PartOptions):
    """Options of `ngram`."""

    max_ngram: Annotated[int, Field(ge=1, le=64, description="longest suffix that is looked up, in tokens")] = 12
    min_ngram: Annotated[int, Field(ge=1, le=64, description="shortest suffix that counts as a match, in tokens")] = 1
    candidates: Annotated[int, Field(ge=1, le=64, description="most different next tokens for a node")] = 4
    min_confidence: Annotated[
        float, Field(ge=0, le=1, description="a token is offered if its path is as likely as this, by the estimate")
    ] = 0.1
    adaptive: Annotated[bool, Field(description="scale the estimate by how often it was right within the request")] = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram is {self.min_ngram} and max_ngram {self.max_ngram}: no suffix has such a length")
        return self


class NgramDrafter(Drafter[NgramOptions]):
    """Proposes what followed the longest earlier occurrence of the last tokens, in the prompt or the output.

    A node's context is prompt, output and drafted path; its candidates are the different tokens that followed the longest
    matching suffix, the more frequent first, the more recent among equals. The score is the logarithm of
    count / (occurrences + NOVELTY / length of the match), so that short and contradictory matches score low.
    *Source: arXiv 2304.04487 (LLMA); prompt lookup decoding; the estimate is that of PPM compressors.*
    """

    name: ClassVar[str] = "ngram"
    Options: ClassVar[type[PartOptions]] = NgramOptions

    def __init__(self, options: NgramOptions) -> None:
        self._options = options

    @classmethod
    def declares(cls, options: NgramOptions) -> DrafterDeclaration:
        """Candidates with scores."""
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options: NgramOptions, tools: BuildTools) -> "NgramDrafter":
        """Nothing to load."""
        return cls(options)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session that has read the prompts."""
        return NgramSession([_Row(self._options, (*start.prompt, start.first_token)) for start in starts])


class NgramIndex:
    """Text, and for every n-gram in it the tokens that followed, with counts; the latest follower is the last entry.

    Appending a token costs max_ngram - min_ngram + 1 dictionary entries, whatever the length of the text.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._lengths = range(min_ngram, max_ngram + 1)
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        self.tail: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            for length in self._lengths:
                if length > len(self.tail):
                    break
                followers = self._followers.setdefault(tuple(self.tail[-length:]), {})
                followers[token] = followers.pop(token, 0) + 1
            self.tail = [*self.tail, token][-self._lengths[-1] :]

    def match(self, path: Sequence[int]) -> tuple[int, dict[int, int]]:
        """Length of the longest suffix of text + path that the text has seen followed, and by what; 0 and {} for none."""
        context = [*self.tail, *path]
        best: tuple[int, dict[int, int]] = (0, {})
        for length in self._lengths:
            followers = self._followers.get(tuple(context[-length:])) if length <= len(context) else None
            if followers is None:
                break
            best = (length, followers)
        return best

    def predict(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens, best first, and their estimated probabilities."""
        length, followers = self.match(path)
        if not followers:
            return []
        weight = sum(followers.values()) + NOVELTY / length
        best = nlargest(count, reversed(followers.items()), key=lambda follower: follower[1])
        return [(token, seen / weight) for token, seen in best]


class _Row:
    """One sequence. predictions: by node of this step's tree, what was predicted there."""

    def __init__(self, options: NgramOptions, tokens: Sequence[int]) -> None:
        self._options = options
        self._index = NgramIndex(options.min_ngram, options.max_ngram)
        self._index.extend(tokens)
        self._tree: TreeSketch | None = None
        self._predictions: dict[int, list[tuple[int, float]]] = {}
        self._hits = self._expected = PATIENCE

    def answer(self, frontier: Frontier) -> Candidates:
        self._tree = frontier.tree
        rows = [self._candidates(frontier.tree, node) for node in frontier.nodes]
        return Candidates(
            tuple(tuple(token for token, _ in row) for row in rows),
            tuple(tuple(math.log(probability) for _, probability in row) for row in rows),
        )

    def _candidates(self, tree: TreeSketch, node: int) -> list[tuple[int, float]]:
        self._predictions[node] = self._index.predict(tree.path(node), self._options.candidates)
        path = self._path_confidence(tree, node)
        scaled = [(token, self._believed(probability)) for token, probability in self._predictions[node]]
        return [(token, p) for token, p in scaled if p > 0 and path * p >= self._options.min_confidence]

    def _believed(self, probability: float) -> float:
        return min(1.0, probability * self._hits / self._expected) if self._options.adaptive else probability

    def _path_confidence(self, tree: TreeSketch, node: int) -> float:
        """Estimated probability of the path to `node`; tokens that another drafter put there count as certain."""
        confidence = 1.0
        while node > 0:
            predicted = dict(self._predictions.get(tree.parents[node], ()))
            confidence *= self._believed(predicted.get(tree.tokens[node], 1.0))
            node = tree.parents[node]
        return confidence

    def observe(self, tokens: Sequence[int]) -> None:
        """Count, along what was emitted, how often the best prediction was right, and how often that was expected."""
        tree, node = self._tree, 0
        children = {} if tree is None else {(p, t): n for n, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        for token in tokens:
            for best, probability in self._predictions.get(node, ())[:1]:
                self._expected += probability
                self._hits += best == token
            if (node, token) not in children:
                break
            node = children[node, token]
        self._index.extend(tokens)
        self._tree = None
        self._predictions = {}


class NgramSession(DraftSession):
    """An index for each row."""

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """Candidates for every frontier node."""
        pairs = zip(self._rows, frontiers, strict=True)
        return [None if frontier is None else row.answer(frontier) for row, frontier in pairs]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Append what was emitted."""
        for row, news in zip(self._rows, committed, strict=True):
            row.observe(news.tokens)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._rows = [self._rows[row] for row in rows]

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self._rows += other._rows
