"""What a check says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specdec.errors import SpecdecError
from specdec.losslessness.exact.coverage import Coverage


class CheckFailed(SpecdecError):
    """A part breaks a rule: names the part, the rule, the place, and what would be right."""


@dataclass(slots=True)
class Checked:
    """What a part has passed. rules: in words. proofs: how many distributions were enumerated; largest_tv: their distance.

    levels, nodes: the largest drafts of one step among them. covered: by kind of tree, at which of its places, and in what else
    the proofs differ; a wrong part that differs elsewhere is not seen. lossy: whether the part claims nothing of its distance.
    """

    part: str
    rules: list[str] = field(default_factory=list)
    proofs: int = 0
    largest_tv: float = 0.0
    levels: int = 0
    nodes: int = 0
    covered: dict[str, Coverage] = field(default_factory=dict)
    lossy: bool = False

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
        if not self.proofs:
            return f"{self.part}: " + "; ".join(self.rules)
        distance = (
            f"total variation up to {self.largest_tv:.2g} from the target's, as it declares itself lossy"
            if self.lossy
            else f"at most {self.largest_tv:.1e} from the target's"
        )
        drafts = f"drafts of up to {self.levels} levels and {self.nodes} nodes"
        parts = [*self.rules, f"{self.proofs} output distributions enumerated, {distance}, {drafts}"]
        parts += [f"{kind}: {one.places_words}" for kind, one in self.covered.items()]
        scopes = dict.fromkeys(one.scope_words for one in self.covered.values() if one.lengths)
        return f"{self.part}: " + "; ".join([*parts, *scopes])
