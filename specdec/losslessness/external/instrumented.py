"""Answers that say, beside their ids, what was drafted and what became of it."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from specdec.errors import PluginError

SUM_TOLERANCE = 1e-2
"""How far the sum of a row of q may be from 1: rows of half precision are."""


class AcceptanceRule(StrEnum):
    """How a decoder accepts the drafts of a chain.

    REJECTION: token x with probability min(1, p(x) / q(x)); after a rejection the next token follows (p - q)+, normalised.
    Drafts that were not drawn count as drawn from a q that is 1 at the token. *Source: arXiv 2211.17192.*
    MATCH: a token is drawn from p, and the draft is accepted where it is the same.
    """

    REJECTION = "rejection"
    MATCH = "match"


@dataclass(frozen=True, slots=True, eq=False)
class DraftedStep:
    """One step of a decoder that drafts chains.

    drafted: tokens, each drafted after the one before; empty where nothing was drafted, as when only the prompt is read.
    accepted: how many of them were accepted, from the first one on.
    next_token: what the target gave behind them; None where the text ended with an accepted draft.
    q: [drafted, vocab] the probabilities that each was drawn from, as an array, a tensor or lists. None where drafts were not
    drawn; they must not depend on the random numbers by which they are verified.
    """

    drafted: Sequence[int]
    accepted: int
    next_token: int | None
    q: Any = None

    @property
    def emitted(self) -> tuple[int, ...]:
        """The tokens that the step adds to the text."""
        return (*self.drafted[: self.accepted], *(() if self.next_token is None else (self.next_token,)))


@dataclass(frozen=True, slots=True, eq=False)
class InstrumentedAnswer:
    """What an instrumented callable returns instead of ids.

    tokens: the new ids. steps: whose emitted tokens are `tokens`, in order; those of the last step may go on behind them. None
    where they are not known.
    rule: by which drafts are accepted, if it is one of these; acceptance and what follows a rejection are then tested, too.
    logprobs: what the engine itself gave each of the ids, before temperature and truncation; it is compared and reported only.
    """

    tokens: Iterable[int]
    steps: Sequence[DraftedStep] | None = None
    rule: AcceptanceRule | str | None = None
    logprobs: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of an answer, checked. rows: by step, [drafted, vocab] float64, or None."""

    steps: tuple[DraftedStep, ...]
    rows: tuple[Tensor | None, ...]
    rule: AcceptanceRule | None

    def __iter__(self) -> Iterator[tuple[DraftedStep, Tensor | None]]:
        return zip(self.steps, self.rows, strict=True)


def checked_logprobs(answer: InstrumentedAnswer, tokens: Sequence[int], name: str) -> tuple[float, ...] | None:
    """The engine's own log-probabilities. Raises PluginError where there is not one for each id."""
    if answer.logprobs is None:
        return None
    found = tuple(float(value) for value in answer.logprobs)
    if len(found) != len(tokens):
        raise PluginError(f"callable '{name}' gave {len(found)} log-probabilities for {len(tokens)} ids")
    return found


def checked_steps(answer: InstrumentedAnswer, tokens: Sequence[int], vocab_size: int, name: str) -> Steps | None:
    """The steps of an answer with these ids. Raises PluginError where they cannot be what was decoded."""
    if answer.steps is None:
        return None
    try:
        steps = tuple(_plain(step) for step in answer.steps)
        rows = tuple(_rows(step, vocab_size) for step in steps)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise PluginError(f"callable '{name}': its steps cannot be read: {error}") from error
    try:
        rule = None if answer.rule is None else AcceptanceRule(answer.rule)
    except ValueError as error:
        known = " or ".join(repr(one.value) for one in AcceptanceRule)
        raise PluginError(f"callable '{name}' states rule {answer.rule!r}; expected {known}, or None") from error
    for number, (step, q) in enumerate(zip(steps, rows, strict=True)):
        fault = _fault(step, q, vocab_size)
        if fault is not None:
            raise PluginError(f"callable '{name}', step {number}: {fault}")
    emitted = tuple(token for step in steps for token in step.emitted)
    if emitted[: len(tokens)] != tuple(tokens):
        raise PluginError(f"callable '{name}': its steps emit {list(emitted)}, but its ids are {list(tokens)}")
    return Steps(steps, tuple(None if q is None else q / q.sum(-1, keepdim=True) for q in rows), rule)


def _plain(step: DraftedStep) -> DraftedStep:
    """With whole numbers of Python."""
    following = None if step.next_token is None else operator.index(step.next_token)
    drafted = tuple(operator.index(token) for token in step.drafted)
    return DraftedStep(drafted, operator.index(step.accepted), following, step.q)


def _rows(step: DraftedStep, vocab_size: int) -> Tensor | None:
    """[drafted, vocab] float64; None without drafts or without q."""
    if step.q is None or not step.drafted:
        return None
    rows = torch.as_tensor(step.q).detach().to("cpu", torch.float64)
    if rows.shape != (len(step.drafted), vocab_size):
        raise ValueError(f"q has shape {list(rows.shape)}; expected [{len(step.drafted)}, {vocab_size}]")
    return rows


def _fault(step: DraftedStep, q: Tensor | None, vocab_size: int) -> str | None:
    if not 0 <= step.accepted <= len(step.drafted):
        return f"{step.accepted} of {len(step.drafted)} drafts were accepted"
    if step.next_token is None and not step.accepted:
        return "nothing was emitted: no draft was accepted, and next_token is None"
    strangers = [token for token in step.drafted if not 0 <= token < vocab_size]
    if strangers:
        return f"token {strangers[0]} was drafted; expected ids below {vocab_size}"
    if q is not None and not bool(((q >= 0).all(-1) & ((q.sum(-1) - 1).abs() <= SUM_TOLERANCE)).all()):
        sums = ", ".join(f"{value:.4g}" for value in q.sum(-1).tolist())
        return f"the rows of q are no distributions: their sums are {sums}, the least value is {float(q.min()):.4g}"
    return None


def idle_words(drafted: int, accepted: int) -> str | None:
    """Why so few drafts prove nothing about a speculative decoder; None where some were accepted."""
    if not drafted:
        return "nothing was drafted: this says nothing about speculative decoding"
    return None if accepted else f"none of {drafted} drafts was accepted: this says little about speculative decoding"
