"""`none`: plain decoding through the same loop."""

from collections.abc import Sequence
from typing import ClassVar, Self

from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored


class NoneOptions(PartOptions):
    """`none` has no options."""


class NoDrafter(Drafter[NoneOptions]):
    """Proposes nothing, so that every step is one token of plain decoding."""

    name: ClassVar[str] = "none"
    Options: ClassVar[type[PartOptions]] = NoneOptions

    @classmethod
    def declares(cls, options: NoneOptions) -> DrafterDeclaration:
        """Candidates, of which there are none."""
        return DrafterDeclaration(gives=Gives.CANDIDATES, drafts=False)

    @classmethod
    def build(cls, options: NoneOptions, tools: BuildTools) -> "NoDrafter":
        """Nothing to load."""
        return cls()

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session without state."""
        return NoSession()


class NoSession(DraftSession):
    """Answers every frontier node with no candidate."""

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """No token for any node."""
        return [None if f is None else Candidates(((),) * len(f.nodes), ((),) * len(f.nodes)) for f in frontiers]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Nothing to learn."""

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing to drop."""

    def join(self, other: Self) -> None:
        """Nothing to append."""
