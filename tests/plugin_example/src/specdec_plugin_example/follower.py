"""`follower`: after a token comes what followed it most often so far."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field

from specdec.authoring import (
    BuildTools,
    Candidates,
    Committed,
    Drafter,
    DrafterDeclaration,
    DraftSession,
    DraftStart,
    Frontier,
    Gives,
    PartOptions,
    Proposal,
    Scored,
)


class FollowerOptions(PartOptions):
    """Options of `follower`."""

    candidates: Annotated[int, Field(ge=1, le=64, description="tokens proposed after each token")] = 2


class Follower(Drafter[FollowerOptions]):
    """Proposes the most frequent followers of a token, in the prompt and the output."""

    name: ClassVar[str] = "follower"
    Options: ClassVar[type[PartOptions]] = FollowerOptions

    def __init__(self, options: FollowerOptions) -> None:
        self._options = options

    @classmethod
    def declares(cls, options: FollowerOptions) -> DrafterDeclaration:
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options: FollowerOptions, tools: BuildTools) -> "Follower":
        return cls(options)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        return FollowerSession([Followers([*s.prompt, s.first_token]) for s in starts], self._options.candidates)


class Followers:
    """Counts of one sequence."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._last = tokens[0]
        self.extend(tokens[1:])

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._counts[self._last][token] += 1
            self._last = token

    def best(self, token: int, count: int) -> list[tuple[int, float]]:
        """Followers and the logarithms of their shares, best first."""
        counts = self._counts[token]
        return [(follower, math.log(n / counts.total())) for follower, n in counts.most_common(count)]


class FollowerSession(DraftSession):
    """The counts of the rows of a batch."""

    def __init__(self, rows: list[Followers], candidates: int) -> None:
        self._rows = rows
        self._candidates = candidates

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        return [
            None if frontier is None else self._answer(row, frontier)
            for row, frontier in zip(self._rows, frontiers, strict=True)
        ]

    def _answer(self, row: Followers, frontier: Frontier) -> Candidates:
        best = [row.best(frontier.tree.tokens[node], self._candidates) for node in frontier.nodes]
        return Candidates(
            tokens=tuple(tuple(token for token, _ in pairs) for pairs in best),
            scores=tuple(tuple(score for _, score in pairs) for pairs in best),
        )

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        for row, done in zip(self._rows, committed, strict=True):
            row.extend(done.tokens)

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def join(self, other: Self) -> None:
        self._rows += other._rows
