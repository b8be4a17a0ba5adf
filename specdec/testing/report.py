"""What a check says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specdec.errors import SpecdecError


class CheckFailed(SpecdecError):
    """A part breaks a rule: names the part, the rule, the place, and what would be right."""


@dataclass(slots=True)
class Checked:
    """What a part has passed. rules: in words. proofs: how many output distributions were enumerated.

    largest_tv: their largest distance from the target's. levels, nodes: the largest drafts of one step among them; faults
    that need larger ones are not seen.
    """

    part: str
    rules: list[str] = field(default_factory=list)
    proofs: int = 0
    largest_tv: float = 0.0
    levels: int = 0
    nodes: int = 0

    @contextmanager
    def rule(self, words: str) -> Iterator[None]:
        """Count a rule as passed unless something inside breaks it. Raises CheckFailed naming part and rule."""
        try:
            yield
        except CheckFailed as error:
            raise CheckFailed(f"{self.part}: {words}: {error}") from error
        except Exception as error:  # whatever a part raises
            raise CheckFailed(f"{self.part}: {words}: {type(error).__name__}: {error}") from error
        if words not in self.rules:
            self.rules.append(words)

    def __str__(self) -> str:
        enumerated = (
            f"; {self.proofs} output distributions enumerated, at most {self.largest_tv:.1e} from the target's, of drafts of "
            f"up to {self.levels} levels and {self.nodes} nodes"
        )
        return f"{self.part}: " + "; ".join(self.rules) + (enumerated if self.proofs else "")
