"""What an answer has cost, and what speculation has gained: the `usage` of a response."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.interfaces.results import Generation, StepRecord


@dataclass(slots=True)
class Usage:
    """Counts over all answers of a response, as they grow."""

    prompt_tokens: int
    completion_tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add_tokens(self, count: int) -> None:
        """Tokens that were emitted."""
        self.completion_tokens += count

    def add_records(self, records: Iterable[StepRecord]) -> None:
        """Steps that were taken."""
        for record in records:
            self.forwards += 1
            self.drafted += record.drafted
            self.accepted += record.accepted
            self.committed += record.committed
            add_positions(self.accepted_at, record.accepted)

    @classmethod
    def of(cls, prompt_tokens: int, generations: Sequence[Generation]) -> "Usage":
        """That of finished answers."""
        usage = cls(prompt_tokens)
        for generation in generations:
            usage.add_tokens(len(generation.tokens))
            usage.add_records(generation.records)
        return usage

    def body(self) -> dict[str, Any]:
        """As OpenAI's, with `speculation`: tau is committed tokens by target forward after the prefill."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "speculation": {
                "target_forwards": self.forwards,
                "drafted_tokens": self.drafted,
                "accepted_tokens": self.accepted,
                "accepted_tokens_per_position": list(self.accepted_at),
                "tau": _ratio(self.committed, self.forwards),
                "draft_acceptance_rate": _ratio(self.accepted, self.drafted),
            },
        }


def add_positions(counts: list[int], accepted: int) -> None:
    """One more step in which so many drafts were accepted: counts[i] is of steps that accepted position i."""
    counts += [0] * (accepted - len(counts))
    for position in range(accepted):
        counts[position] += 1


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
