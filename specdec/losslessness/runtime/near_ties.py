"""The near-tie ledger: emitted tokens fed to plain decoding one by one, and how far each was from its choice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any

from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Target
from specdec.losslessness.reference_model import one_by_one
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams

NEAR_TIE = 2.0
"""Times the width noise: a gap of more is a fault, whatever the text looks like."""

LEAST_NOISE = 1e-9
"""Where a target makes no noise at all."""


LISTED = 50
"""Divergences that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token that plain decoding would not have chosen. gap: of its logit to the best one. place: in the answer."""

    text: int
    place: int
    token: int
    best: int
    gap: float


@dataclass(slots=True)
class Ledger:
    """All tokens that were looked at. margins: plain decoding's top two apart, at each divergence."""

    tokens: int = 0
    texts: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Divergences per 1,000 tokens."""
        return 1000 * len(self.divergences) / self.tokens if self.tokens else 0.0

    @property
    def largest(self) -> float:
        """The largest gap; 0 without a divergence."""
        return max((d.gap for d in self.divergences), default=0.0)

    def beyond(self, limit: float) -> list[Divergence]:
        """Those that are no near-tie."""
        return [d for d in self.divergences if d.gap > limit]

    def histogram(self) -> dict[str, int]:
        """Divergences by the power of ten of their gap; exact ties apart."""
        counts: dict[str, int] = {}
        for divergence in sorted(self.divergences, key=lambda d: d.gap):
            name = "0" if divergence.gap == 0 else f"1e{floor(log10(divergence.gap)):+d}"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def enter(self, prompt: Sequence[int], tokens: Sequence[int], rows: Sequence[Tensor], warper: LogitsWarper) -> None:
        """One answer. rows: [vocab] plain decoding's logits before each token."""
        self.texts += 1
        context = list(prompt)
        for place, (token, row) in enumerate(zip(tokens, rows, strict=True)):
            scores = (warper.processed(row, context) if warper.depends_on_path else row).double()
            best = int(scores.argmax())
            self.tokens += 1
            if token != best:
                self.divergences.append(
                    Divergence(self.texts - 1, place, token, best, float(scores[best]) - float(scores[token]))
                )
            context.append(token)


def teacher_force(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> list[Tensor]:
    """[vocab] by token: what plain decoding of `target`, one token a forward, says before each of `tokens`."""
    if not tokens:
        return []
    first = target.prefill([list(prompt)], Features()).scored[0].logits[0]
    rest = one_by_one(target, [*prompt, *tokens[:-1]], len(prompt), Features())
    return [first, *(scored.logits[0] for scored in rest.values())]


def greedy(sampling: SamplingParams) -> SamplingParams:
    """The same, at temperature 0 and without the truncation that it makes idle."""
    return sampling.model_copy(update={"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None})


def listed(ledger: Ledger, limit: float | None) -> list[dict[str, Any]]:
    """The largest divergences as JSON data. limit: of a near-tie, where there is one."""
    worst = sorted(ledger.divergences, key=lambda d: -d.gap)[:LISTED]
    return [
        {"text": d.text, "place": d.place, "token": d.token, "best": d.best, "gap": d.gap}
        | ({} if limit is None else {"near_tie": d.gap <= limit})
        for d in worst
    ]
