"""The likeliest tokens of rows of logits, fast: the ranking of draft candidates is paid at every level of every draft."""

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 256
"""Columns whose maximum is looked at first."""

TEMPORARY = 1 << 16
"""Numbers that are converted at once."""

MARGIN = 7
"""Columns beyond those asked for, so that a tie at the cut rarely needs a second look at the whole row."""


def top_columns(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`logits.topk(count)` [rows, count], but for which of several equal columns at the end are taken.

    The best `count` values lie in the `count` blocks with the largest maxima; on a CPU this takes a quarter of the time.
    """
    rows, columns = logits.shape
    blocks = -(-columns // BLOCK)
    if blocks < 4 * count:
        values, found = logits.topk(min(count, columns))
        return values, found
    padding = blocks * BLOCK - columns
    padded = functional.pad(logits, (0, padding), value=float("-inf")) if padding else logits
    grid = padded.reshape(rows, blocks, BLOCK)
    chosen = grid.amax(-1).topk(count).indices
    picked = grid.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).reshape(rows, -1)
    values, places = picked.topk(count)
    found = chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    return values, found.clamp_max(columns - 1)


def is_one_row(logits: Tensor) -> bool:
    """Whether several rows are one that was expanded, as those of a drafter that answers all nodes of a depth alike."""
    return len(logits) > 1 and logits.stride(0) == 0


def best_tokens(logits: Tensor, count: int, target_ids: Tensor | None) -> list[list[tuple[int, float]]]:
    """By row, the `count` likeliest (target id, log-probability), best first; equal logits: the lower id first.

    logits: [rows, columns], unwarped. target_ids: [columns] the id of each column; None: the column itself. Impossible tokens
    are left out. A row with NaN or infinity has NaN for its log-probabilities.
    """
    if not logits.numel() or count < 1:
        return [[] for _ in logits]
    if is_one_row(logits):
        return best_tokens(logits[:1], count, target_ids) * len(logits)
    values, columns = top_columns(logits, count + MARGIN)
    log_probs = _log_probs(logits, columns).tolist()
    tokens = columns if target_ids is None else target_ids[columns]
    rows = []
    for row, found in enumerate(zip(values.tolist(), tokens.tolist(), log_probs, strict=True)):
        triples = [(-value, token, score) for value, token, score in zip(*found, strict=True) if value != float("-inf")]
        if len(triples) == count + MARGIN and triples[-1][0] == triples[count - 1][0]:
            triples = _with_lowest_ids(triples, count, logits[row], target_ids)
        rows.append([(token, score) for _, token, score in sorted(triples)[:count]])
    return rows


def _log_probs(logits: Tensor, columns: Tensor) -> Tensor:
    """[rows, k] log-probabilities of `columns`, in at least float32.

    A few rows at a time: a larger temporary goes back to the system after every call, and getting it anew takes milliseconds.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    some = max(1, TEMPORARY // logits.shape[1])
    pairs = zip(torch.split(logits, some), torch.split(columns, some), strict=True)
    return torch.cat([torch.log_softmax(part, -1, dtype=dtype).gather(1, found) for part, found in pairs])


def _with_lowest_ids(
    triples: list[tuple[float, int, float]], count: int, logits: Tensor, target_ids: Tensor | None
) -> list[tuple[float, int, float]]:
    """The first `count`, those that tie at the cut taken by their ids."""
    edge, _, score = triples[count - 1]
    above = [triple for triple in triples if triple[0] < edge]
    tied = (logits == -edge).nonzero()[:, 0]
    ids = sorted((tied if target_ids is None else target_ids[tied]).tolist())
    return above + [(edge, token, score) for token in ids[: count - len(above)]]
