"""Distributions over tokens: truncated, renormalised, and drawn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.sampling.params import TruncationParams
from specdec.sampling.rng import TargetRng
from specdec.sampling.topk import is_one_row

FIRST_CUT = 256
"""Tokens that top-p looks at first. A full sort of 49,152 costs 11 ms, the likeliest 256 cost 0.1 and 4,096 cost 0.4."""

CUT_GROWTH = 4
"""How many times more tokens it looks at when these were too few."""

UNUSABLE_ROW = "NaN, +inf or no finite value in a row of logits: every token is forbidden"


@dataclass(frozen=True, slots=True, eq=False)
class TokenDist:
    """A distribution over target ids by its support. ids: [k] ascending; probs: [k] float64, positive, sum 1.

    A point mass keeps its token in `point`, and needs no tensor work.
    """

    ids: Tensor
    probs: Tensor
    point: int | None = None

    def prob(self, token: int) -> float:
        """Probability of one token."""
        if self.point is not None:
            return 1.0 if token == self.point else 0.0
        slot = int(torch.searchsorted(self.ids, token))
        return float(self.probs[slot]) if slot < len(self.ids) and int(self.ids[slot]) == token else 0.0

    def choose(self, rng: TargetRng, position: int) -> int:
        """Draw the token of `position`."""
        if self.point is not None:
            rng.skip(position)
            return self.point
        return rng.choose(self.ids, self.probs, position)

    def dense(self, vocab_size: int) -> Tensor:
        """[vocab] float64."""
        row = torch.zeros(vocab_size, dtype=torch.float64, device=self.ids.device)
        row[self.ids] = self.probs
        return row

    def without(self, token: int) -> "TokenDist | None":
        """Without one token, renormalised; None if nothing is left."""
        if self.point is not None:
            return None if token == self.point else self
        return _normalised(self.ids, torch.where(self.ids == token, 0.0, self.probs))

    def excess(self, q: Tensor, weight: float = 1.0) -> Tensor:
        """[k] (weight p - q)+ on the support, for q [vocab]."""
        return (weight * self.probs).sub_(self.of(q)).clamp_min_(0)

    def of(self, row: Tensor) -> Tensor:
        """[k] the values of a row [vocab] on the support; the row itself where that is the whole vocabulary."""
        return (row if len(self.ids) == len(row) else row[self.ids.to(row.device)]).to(self.probs)

    def residual(self, q: Tensor, weight: float = 1.0) -> "TokenDist | None":
        """norm((weight p - q)+) for q [vocab]; None if nothing is left. Source: arXiv 2211.17192, appendix A.1."""
        return _normalised(self.ids, self.excess(q, weight))

    def reweighted(self, weights: Tensor) -> "TokenDist | None":
        """norm(weights) [k] on the support; None if nothing is left."""
        return _normalised(self.ids, weights)


def point_mass(token: int) -> TokenDist:
    """All mass on one token."""
    return TokenDist(torch.tensor([token]), torch.ones(1, dtype=torch.float64), token)


def left_of(weights: Tensor) -> TokenDist | None:
    """The distribution of a dense row of weights [vocab], renormalised; None if nothing is left."""
    return _normalised(torch.arange(weights.shape[-1], device=weights.device), weights.to(torch.float64))


def from_dense(probs: Tensor) -> TokenDist:
    """The distribution of a dense row of weights [vocab], renormalised. Raises NumericsError for no mass or NaN."""
    dist = left_of(probs)
    if dist is None:
        raise NumericsError("a distribution has no mass")
    return dist


def _normalised(ids: Tensor, weights: Tensor) -> TokenDist | None:
    total = float(weights.sum())
    if not total < float("inf"):
        raise NumericsError(f"probabilities sum to {total}")
    if total <= 0:
        return None
    if not float(weights.min()) > 0:
        kept = weights > 0
        ids, weights = ids[kept], weights[kept]
    return TokenDist(ids, weights / total, int(ids[0]) if len(ids) == 1 else None)


def truncate(logits: Tensor, truncation: TruncationParams) -> TokenDist:
    """Temperature, top-k, top-p and min-p of one row [vocab]. Temperature 0: the lowest-id argmax."""
    if not truncation.temperature:
        return point_mass(_argmax(logits))
    scaled = logits.to(torch.float64)
    if truncation.temperature != 1:
        scaled = scaled / truncation.temperature
    ids = torch.arange(len(scaled), device=scaled.device)
    if truncation.top_k is not None and truncation.top_k < len(scaled):
        best = scaled.topk(truncation.top_k).values
        if not bool(best[0] < float("inf")):
            raise NumericsError(UNUSABLE_ROW)
        ids = (scaled >= best[-1]).nonzero()[:, 0]
        scaled = scaled[ids]
    probs = torch.softmax(scaled, -1)
    if truncation.top_p is not None and truncation.top_p < 1:
        kept = _nucleus(probs, truncation.top_p)
        ids, probs = ids[kept], probs[kept]
    if truncation.min_p:
        kept = (probs >= truncation.min_p * probs.max()).nonzero()[:, 0]
        ids, probs = ids[kept], probs[kept]
    if len(ids) == len(logits) > 1 and float(probs.min()) > 0:
        return TokenDist(ids, probs)
    try:
        dist = _normalised(ids, probs)
    except NumericsError as error:
        raise NumericsError(UNUSABLE_ROW) from error
    if dist is None:
        raise NumericsError(UNUSABLE_ROW)
    return dist


def _argmax(logits: Tensor) -> int:
    token = int(logits.argmax())
    if not float("-inf") < float(logits[token]) < float("inf"):
        raise NumericsError(UNUSABLE_ROW)
    return token


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Ascending indices of the smallest set with mass >= top_p; ties at its edge go to lower indices."""
    size = FIRST_CUT
    while True:
        ordered, index = probs.topk(min(size, len(probs)))
        count = int((ordered.cumsum(0) - ordered < top_p).sum())
        if count < len(ordered) or size >= len(probs):
            break
        size *= CUT_GROWTH
    count = max(count, 1)
    edge = ordered[count - 1]
    if count < len(ordered) and bool(ordered[count] < edge):
        return index[:count].sort().values
    above = (probs > edge).nonzero()[:, 0]
    tied = (probs == edge).nonzero()[:, 0][: count - len(above)]
    return torch.cat([above, tied]).sort().values


def draft_probs(logits: Tensor, target_ids: Tensor | None, vocab_size: int, truncation: TruncationParams) -> Tensor:
    """Q [rows, vocab_size] float64 from draft logits [rows, columns]: truncated, normalised, in target ids, zero elsewhere.

    A row without any possible token (a drafter out of room) stays zero: nothing can be drawn from it.
    """
    columns = logits.shape[-1]
    if is_one_row(logits):
        return draft_probs(logits[:1], target_ids, vocab_size, truncation).repeat(len(logits), 1)
    best = logits.amax(-1)
    if not all(value < float("inf") for value in best.tolist()):
        raise NumericsError("a row of draft logits has NaN or infinity")
    impossible = best == float("-inf")
    if bool(impossible.any()):
        q = torch.zeros(len(logits), vocab_size, dtype=torch.float64, device=logits.device)
        if not bool(impossible.all()):
            q[~impossible] = draft_probs(logits[~impossible], target_ids, vocab_size, truncation)
        return q
    if truncation.top_k is None and truncation.top_p is None and not truncation.min_p and truncation.temperature:
        rows = torch.softmax(logits.to(torch.float64) / truncation.temperature, -1)
    else:
        rows = torch.stack([truncate(row, truncation).dense(columns) for row in logits])
    if target_ids is None and columns == vocab_size:
        return rows
    q = torch.zeros(len(rows), vocab_size, dtype=torch.float64, device=rows.device)
    q[:, slice(columns) if target_ids is None else target_ids] = rows
    return q
