"""How far a row of logits may be from what reading the same path alone gives."""

import torch
from torch import Tensor

from specdec.testing.report import CheckFailed

IMPOSSIBLE = -30.0
"""Log-probabilities below are as good as minus infinity."""

ROUNDINGS = 20
"""Rounding widths of a half-precision type by which a row may differ from itself, as a share of its spread.

In bfloat16 (0.156) rows of the embedded model differ by 0.11 at most; with positions off by one some differ by 0.5, with a
neighbour that a node must not see by 0.6, and with one key missing in one of 30 layers by 0.16.
"""


def check_log_probs(got: Tensor, wanted: Tensor, limit: float, where: str) -> None:
    """Raise CheckFailed, naming the place, where a log-probability of two rows of logits [vocab] differs by more."""
    one, other = (row.double().log_softmax(-1).clamp_min(IMPOSSIBLE) for row in (got, wanted))
    difference = (one - other).abs()
    token = int(difference.argmax())
    if not float(difference[token]) <= limit:
        raise CheckFailed(
            f"{where}: token {token} has log-probability {float(one[token]):.6g}; reading that path alone gives "
            f"{float(other[token]):.6g} (limit {limit:g}): look at positions, mask, and what the cache holds"
        )


def check_spread(got: Tensor, wanted: Tensor, where: str) -> None:
    """For half precision, where rounding moves unlikely tokens by more than a fault moves likely ones.

    Raise CheckFailed, naming the place, where two rows of logits [vocab] of one half-precision type differ by more.
    """
    possible = wanted > -torch.inf
    if not torch.equal(possible, got > -torch.inf):
        raise CheckFailed(f"{where}: other tokens are impossible than where that path alone is read")
    one, other = (row[possible].double() for row in (got, wanted))
    limit = ROUNDINGS * torch.finfo(wanted.dtype).eps
    share = float((one - other).std(correction=0) / other.std(correction=0).clamp_min(1e-12))
    if not share <= limit:
        raise CheckFailed(
            f"{where}: the logits differ from those of reading that path alone by {share:.3g} of their spread (limit "
            f"{limit:.3g}): look at positions, mask, and what the cache holds"
        )
