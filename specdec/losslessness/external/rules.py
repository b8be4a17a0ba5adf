"""Verification rules of others, as plain functions: every draft and every outcome of their random numbers, enumerated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from specdec.errors import PluginError, SpecError
from specdec.interfaces.probability_table import ProbabilityTable, TableOptions
from specdec.losslessness.exact.distance import TOLERANCE, Emission, ExactProof, prove
from specdec.losslessness.exact.toy_models import stand_in
from specdec.losslessness.external.uniforms import Row, Uniforms
from specdec.sampling.enumeration import outcomes
from specdec.sampling.rng import RequestRng

Rows = Callable[[Sequence[int]], Row]
"""Drafted path -> probabilities of the next token, [vocab] float64."""


class Drafts(StrEnum):
    """What a rule is given. CHAIN: tokens drawn one after another. The others are several tokens for one position."""

    CHAIN = "chain"
    ARGMAX_CHAIN = "argmax-chain"
    IID = "iid"
    WITHOUT_REPLACEMENT = "without-replacement"
    TOP = "top"

    @property
    def is_chain(self) -> bool:
        """Whether each token is drafted after the one before."""
        return self in (Drafts.CHAIN, Drafts.ARGMAX_CHAIN)


Rule = Callable[[list[Row], list[Row], list[int], Uniforms], tuple[int | None, int]]
"""(rows of p, rows of q, drafted tokens, random numbers) -> (what was accepted, the next token).

For a chain of n drafts p has n + 1 rows, q has n, and the first value is how many drafts were accepted. For several drafts of
one position p and q have one row each, and the first value is the place of the accepted draft, which is then emitted, or None,
and then the second value is.
"""


@dataclass(frozen=True, slots=True)
class RuleProof:
    """What enumeration of a rule found on one pair of models. model: its name and number of tokens.

    towards_drafts: how much more likely than it should be a token is that the drafter gives more than the target does, at the
    worst prefix; negative: less.
    """

    model: str
    proof: ExactProof
    towards_drafts: float

    @property
    def direction(self) -> str:
        """In words."""
        if abs(self.towards_drafts) <= TOLERANCE:
            return "among tokens that the drafter does not favour"
        return "towards the drafter" if self.towards_drafts > 0 else "away from the drafter"


def verify_rule(rule: Rule, drafts: Drafts, count: int, *, models: int = 8, vocab_size: int = 3) -> list[RuleProof]:
    """Enumerate a rule on `models` pairs of p and q, each adversarial in another way.

    Args:
        rule: See `Rule`.
        drafts: What it is given.
        count: Drafted tokens.
        models: How many pairs; every eight, all kinds have come.
        vocab_size: Tokens; more than `count` where siblings are drawn, so that the last draw is free.

    Raises:
        PluginError: Where the rule fails, or returns what is no answer.
        SpecdecError: Where it has too many outcomes.
    """
    return [enumerate_rule(rule, drafts, count, *_rows(number, vocab_size)) for number in range(models)]


def enumerate_rule(
    rule: Rule,
    drafts: Drafts,
    count: int,
    p: Rows,
    q: Rows,
    name: str = "given",
) -> RuleProof:
    """The same on rows of one's own. p, q: drafted path -> probabilities of the next token, [vocab] float64."""
    distribution = outcomes(lambda rng: _emission(rule, _drafted(drafts, count, q, rng), drafts, p, q, rng))
    proof = prove(distribution, lambda path: p(path).tolist())
    return RuleProof(name, proof, _towards(proof, q))


def _drafted(drafts: Drafts, count: int, q: Rows, rng: RequestRng) -> list[int]:
    if drafts is Drafts.TOP:
        row = q(())
        return [int(token) for token in np.argsort(-row, kind="stable")[:count] if row[token] > 0]
    if not drafts.is_chain:
        return rng.draft.draw(torch.as_tensor(q(())), count, replacement=drafts is Drafts.IID)
    path: list[int] = []
    for _ in range(count):
        row = q(path)
        token = (
            int(row.argmax()) if drafts is Drafts.ARGMAX_CHAIN else rng.draft.draw(torch.as_tensor(row), 1, replacement=True)[0]
        )
        path.append(token)
    return path


def _emission(
    rule: Rule,
    drafted: list[int],
    drafts: Drafts,
    p: Rows,
    q: Rows,
    rng: RequestRng,
) -> Emission:
    places = range(len(drafted) + 1) if drafts.is_chain else range(1)
    p_rows = [p(drafted[:end]).copy() for end in places]
    q_rows = [q(drafted[:end]).copy() for end in (places[:-1] if drafts.is_chain else places)]
    try:
        answer: Any = rule(p_rows, q_rows, list(drafted), Uniforms(rng))
        accepted, token = answer
        taken = None if accepted is None else int(accepted)
    except SpecError:
        raise
    except Exception as error:
        raise PluginError(f"the rule fails on drafts {drafted}: {type(error).__name__}: {error}") from error
    if drafts.is_chain:
        if taken is None or not 0 <= taken <= len(drafted):
            raise PluginError(f"the rule accepted {accepted!r} of {len(drafted)} drafts")
        return Emission((*drafted[:taken], int(token)), (taken,))
    if taken is None:
        return Emission((int(token),), (0,))
    if not 0 <= taken < len(drafted):
        raise PluginError(f"the rule accepted draft {accepted!r} of {len(drafted)}; expected its place, from 0, or None")
    return Emission((drafted[taken],), (1,))


def _towards(proof: ExactProof, q: Rows) -> float:
    if not proof.violations:
        return 0.0
    worst = proof.violations[0]
    likelier = np.asarray(q(worst.prefix)) > np.asarray(worst.wanted)
    return float((np.asarray(worst.got) - np.asarray(worst.wanted))[likelier].sum())


def _rows(number: int, vocab_size: int) -> tuple[Rows, Rows, str]:
    model = stand_in(number, vocab_size)

    def rows_of(part: dict[str, Any]) -> Rows:
        options = {key: value for key, value in part.items() if key in TableOptions.model_fields}
        table = ProbabilityTable(TableOptions.model_validate(options))
        return lambda path: table.log_probs([0, *path]).exp().numpy()

    return rows_of(model.target), rows_of(model.drafter), f"{model.name} ({number})"
