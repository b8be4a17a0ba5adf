"""The steps of an instrumented decoder against p and q: what is drafted, accepted, and drawn after a rejection.

The token at a place that has a draft follows p, whatever the rule, given that the place was reached. *Source: arXiv 2211.17192,
appendix A.1.* Where the rule is stated, so do acceptance and the token after a rejection, each given what came before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.losslessness.external.instrumented import AcceptanceRule, DraftedStep, Steps, idle_words
from specdec.losslessness.sampled.eprocess import EProcess
from specdec.losslessness.sampled.evidence import Drawn, Evidence, Leaning
from specdec.losslessness.sampled.statistics import Floats
from specdec.sampling.distribution import TokenDist
from specdec.sampling.keyed_noise import mix, uniforms

ROUNDING = 0.05
"""Relative: where p and q are so close, rounding may decide which of them is larger."""

LEAST_RESIDUAL = 1e-3
"""Sum of (p - q)+ below which the residual is mostly rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A draft that was verified. q: [vocab] what it was drawn from; following: the token drawn where it was rejected."""

    p: TokenDist
    q: Tensor
    draft: int
    following: int | None


@dataclass(slots=True)
class StepEvidence:
    """All steps so far. drafted, accepted: tokens."""

    vocab_size: int
    drafted: int = 0
    accepted: int = 0
    rules: set[AcceptanceRule | None] = field(default_factory=set)
    places: Evidence = field(default_factory=lambda: Evidence("drafted places", Leaning.DRAFTER))
    drafts: Evidence = field(default_factory=lambda: Evidence("drafts against q", Leaning.LIKELIER))
    acceptance: Evidence = field(
        default_factory=lambda: Evidence(
            "acceptance", Leaning.DRAFTER, wealth=EProcess(("every draft accepted", "no draft accepted"))
        )
    )
    residual: Evidence = field(default_factory=lambda: Evidence("after rejection", Leaning.TARGET))

    @property
    def parts(self) -> list[Evidence]:
        """That have seen anything."""
        parts = (self.places, self.drafts, self.acceptance, self.residual)
        return [part for part in parts if part.tokens or part.impossible]

    @property
    def idle_words(self) -> str | None:
        """Why these steps prove nothing; None where drafts were accepted."""
        return idle_words(self.drafted, self.accepted)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        rules = sorted("none" if rule is None else rule.value for rule in self.rules)
        tested = {part.name: {"tokens": part.tokens, "impossible": part.impossible} for part in self.parts}
        return {"drafted": self.drafted, "accepted": self.accepted, "rules": rules, "tested": tested}

    def see(self, steps: Steps, tokens: Sequence[int], distributions: Sequence[TokenDist], key: int) -> None:
        """One answer. tokens: the new ones that are judged; distributions: p before each. key: of random numbers of its own."""
        self.rules.add(steps.rule)
        drawn = {name: Drawn() for name in ("places", "drafts", "residual")}
        place, tried = 0, list[tuple[bool, float]]()
        for number, (step, rows) in enumerate(steps):
            self.drafted += len(step.drafted)
            self.accepted += step.accepted
            for depth, draft in enumerate(step.drafted):
                uniform = _uniforms(mix(key, number, depth))
                q = _one_hot(draft, self.vocab_size) if rows is None else rows[depth]
                if rows is not None and steps.rule is AcceptanceRule.REJECTION:
                    self._see_draft(q, draft, drawn["drafts"], uniform[0])
                if place + depth >= len(tokens) or not _is_verified(step, depth):
                    continue
                token, p = tokens[place + depth], distributions[place + depth]
                self._see_token(p, q, token, drawn["places"], uniform[1])
                if steps.rule is not None:
                    sampled = q if steps.rule is AcceptanceRule.REJECTION else _one_hot(draft, self.vocab_size)
                    verified = _Place(p, sampled, draft, None if depth < step.accepted else token)
                    tried += self._tried(verified)
                    self._see_residual(verified, drawn["residual"], uniform[2])
            place += len(step.emitted)
        self._see_acceptance(tried)
        for name, evidence in (("places", self.places), ("drafts", self.drafts), ("residual", self.residual)):
            drawn[name].hand_in(evidence)

    def _see_draft(self, q: Tensor, draft: int, drawn: Drawn, uniform: float) -> None:
        """A draft against the row that it is said to be drawn from."""
        ids = q.nonzero()[:, 0]
        slot = int(torch.searchsorted(ids, draft))
        if slot < len(ids) and int(ids[slot]) == draft:
            drawn.add(_normalised(q[ids]), None, slot, uniform)
        else:
            self.drafts.impossible += 1

    def _see_token(self, p: TokenDist, q: Tensor, token: int, drawn: Drawn, uniform: float) -> None:
        """What was emitted at a place with a draft, against p; a token that p lacks is found with the answers."""
        slot = int(torch.searchsorted(p.ids, token))
        if slot < len(p.ids) and int(p.ids[slot]) == token:
            drawn.add(p.probs.numpy(), q[p.ids].numpy(), slot, uniform)

    def _tried(self, place: _Place) -> list[tuple[bool, float]]:
        """(was the draft accepted, with which probability), where that was open."""
        drafted, wanted = float(place.q[place.draft]), place.p.prob(place.draft)
        accepted = place.following is None
        if not accepted and wanted > drafted * (1 + ROUNDING):
            self.acceptance.impossible += 1
        return [(accepted, wanted / drafted)] if 0 < wanted < drafted else []

    def _see_acceptance(self, tried: list[tuple[bool, float]]) -> None:
        if tried:
            hits, shares = np.array(tried, dtype=np.float64).T
            self.acceptance.add(hits, shares, np.array([]), np.stack([hits / shares, (1 - hits) / (1 - shares)], 1))

    def _see_residual(self, place: _Place, drawn: Drawn, uniform: float) -> None:
        """The token after a rejection against (p - q)+, over the tokens whose p exceeds their q by more than rounding."""
        token = place.following
        if token is None:
            return
        p, q = place.p.probs.numpy(), place.q[place.p.ids].numpy()
        excess = np.where(p - q > ROUNDING * p, p - q, 0.0)
        support = np.flatnonzero(excess)
        if float(excess.sum()) < LEAST_RESIDUAL:
            return
        slot = int(torch.searchsorted(place.p.ids, token))
        if slot >= len(p) or int(place.p.ids[slot]) != token:
            return
        if excess[slot] > 0:
            rest = excess[support] / excess.sum()
            drawn.add(rest, p[support] / p.sum(), int(np.searchsorted(support, slot)), uniform)
        elif q[slot] > p[slot] * (1 + ROUNDING):
            self.residual.impossible += 1


def _is_verified(step: DraftedStep, depth: int) -> bool:
    """Whether the draft was reached, and something was emitted at its place."""
    return depth < step.accepted or (depth == step.accepted and step.next_token is not None)


def _one_hot(token: int, vocab_size: int) -> Tensor:
    row = torch.zeros(vocab_size, dtype=torch.float64)
    row[token] = 1.0
    return row


def _normalised(weights: Tensor) -> Floats:
    row = weights.numpy()
    result: Floats = row / row.sum()
    return result


def _uniforms(key: int) -> list[float]:
    values: list[float] = uniforms(key, torch.arange(3)).tolist()
    return values
