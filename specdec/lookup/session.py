"""A session of drafters that look things up: every row answers for itself."""

from collections.abc import Sequence
from typing import Protocol, Self

from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Frontier, Proposal
from specdec.interfaces.results import Committed, Scored
from specdec.lookup.predictions import Guess, Predictions
from specdec.trees.draft_tree import TreeSketch


class LookupRow(Protocol):
    """One sequence."""

    predictions: Predictions

    def guess(self, tree: TreeSketch, node: int) -> list[Guess]:
        """The tokens that may follow `node`, best first."""

    def observe(self, news: Committed, scored: Scored) -> None:
        """Take in what was emitted, and what the target said at the nodes of the tree."""


class LookupSession(DraftSession):
    """Candidates of each row's predictions."""

    def __init__(self, rows: Sequence[LookupRow]) -> None:
        self._rows = rows

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """Candidates for every frontier node."""
        pairs = zip(self._rows, frontiers, strict=True)
        return [None if frontier is None else row.predictions.answer(frontier, row.guess) for row, frontier in pairs]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Take in what was emitted and scored, row by row."""
        for row, news, answer in zip(self._rows, committed, scored, strict=True):
            row.observe(news, answer)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._rows = [self._rows[row] for row in rows]

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self._rows = [*self._rows, *other._rows]
