"""The drafter of a table that ranks its tokens, in the place of a drafter that gives candidates."""

from collections.abc import Sequence
from typing import ClassVar, Self

from specdec.drafters.tabular import Tabular
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored


class RankedTable(Drafter[PartOptions]):
    """Gives every possible token of its table's row as a candidate, the likeliest first."""

    name: ClassVar[str] = "tabular"
    Options: ClassVar[type[PartOptions]] = PartOptions

    def __init__(self, table: Tabular) -> None:
        self._table = table
        self.declaration = DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def declares(cls, options: PartOptions) -> DrafterDeclaration:
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "RankedTable":
        raise NotImplementedError("it is made from a table")

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        return _RankedSession(self._table.open(starts))


class _RankedSession(DraftSession):
    def __init__(self, inner: DraftSession) -> None:
        self._inner = inner

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        return [_ranked(answer) for answer in self._inner.expand(frontiers)]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        self._inner.observe(committed, scored)

    def keep(self, rows: Sequence[int]) -> None:
        self._inner.keep(rows)

    def join(self, other: Self) -> None:
        self._inner.join(other._inner)


def _ranked(answer: Proposal | None) -> Proposal | None:
    if not isinstance(answer, Distributions):
        return answer
    tokens, scores = answer.top(answer.logits.shape[-1])
    return Candidates(tuple(map(tuple, tokens)), tuple(tuple(min(score, 0.0) for score in row) for row in scores))
