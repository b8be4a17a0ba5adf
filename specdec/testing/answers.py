"""Answers of drafters: whether two are the same, and how they are shown."""

import torch
from torch import Tensor

from specdec.interfaces.proposals import Candidates, Distributions, Proposal

CLOSE = 1e-4
"""Largest difference of scores that rounding may make between batches."""


def alike(one: Proposal | None, other: Proposal | None) -> bool:
    """Whether they are the same up to rounding."""
    if isinstance(one, Distributions) and isinstance(other, Distributions):
        return _same_ids(one.target_ids, other.target_ids) and _close(one.logits, other.logits)
    if isinstance(one, Candidates) and isinstance(other, Candidates):
        return one.tokens == other.tokens and _close(_flat(one), _flat(other))
    return one is None and other is None


def answer_row(answer: Proposal, row: int) -> Proposal:
    """What it says of one frontier node."""
    if isinstance(answer, Distributions):
        return Distributions(answer.logits[row : row + 1], answer.target_ids, answer.source)
    sources = answer.sources[row : row + 1]
    return Candidates(answer.tokens[row : row + 1], answer.scores[row : row + 1], answer.source, sources)


def same_tokens(one: Proposal, other: Proposal) -> bool:
    """Whether they propose the same, whatever the scores of candidates, in which a drafter may count its own successes."""
    if isinstance(one, Candidates) and isinstance(other, Candidates):
        return one.tokens == other.tokens
    return alike(one, other)


def difference(got: Proposal | None, alone: Proposal | None) -> tuple[str, str]:
    """Both in words, of several nodes the first at which they differ."""
    if got is None or alone is None or len(got.top(1)[0]) != len(alone.top(1)[0]):
        return answer_words(got), answer_words(alone)
    rows = range(len(got.top(1)[0]))
    row = next((row for row in rows if not alike(answer_row(got, row), answer_row(alone, row))), 0)
    return f"{answer_words(answer_row(got, row))} at node {row}", answer_words(answer_row(alone, row))


def says_something(answer: Proposal) -> bool:
    """Whether it proposes a token for every node."""
    return all(answer.top(1)[0])


def answer_words(answer: Proposal | None) -> str:
    """Its two best tokens for each node, and their scores."""
    if answer is None:
        return "none"
    tokens, scores = answer.top(2)
    return "; ".join(
        f"{row_tokens} at {[round(score, 4) for score in row_scores]}"
        for row_tokens, row_scores in zip(tokens, scores, strict=True)
    )


def _same_ids(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=CLOSE, rtol=CLOSE)


def _flat(answer: Candidates) -> Tensor:
    return torch.tensor([score for row in answer.scores for score in row], dtype=torch.float64)
