"""Validation by what counts: how far a chain of greedy drafts gets on held-out answers."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.heads.architectures import TrainedHead
from specdec.heads.block import BlockHead
from specdec.heads.hydra import HydraHead
from specdec.heads.medusa import MedusaHead
from specdec.training.borrowed import Borrowed, logit_factors
from specdec.training.dataset import Batch
from specdec.training.unroll import drafted

DEPTH = 5
"""Of the chain; heads that each predict one depth may be fewer."""


@dataclass(frozen=True, slots=True)
class ChainAcceptance:
    """alpha[n]: accepted / tested drafts at depth n + 1. tau: tokens per cycle of a chain of `chain_depth`. positions: tested.

    tested, accepted (by depth), cycles and committed are the counts that these come from, for pooling.
    """

    alpha: tuple[float, ...]
    tau: float
    positions: int
    tested: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    cycles: int = 0
    committed: int = 0


@torch.no_grad()
def chain_acceptance(head: TrainedHead, borrowed: Borrowed, batches: Iterable[Batch]) -> ChainAcceptance:
    """Greedy chains against the text itself, teacher-forced: exact for answers that the target gave at temperature 0.

    Every answer is walked cycle by cycle as a decoder would: from one committed token past the accepted drafts and one more.
    """
    depth = chain_depth(head)
    tested, accepted = [0] * depth, [0] * depth
    cycles = committed = 0
    for batch in batches:
        right = _right(head, borrowed, batch, depth)
        for row, real in enumerate(batch.judged):
            places = real.nonzero()[:, 0]
            if len(places) < 2:
                continue
            here, end = int(places[0]), int(places[-1])
            while here < end:
                length = 0
                while length < depth and here + length < end:
                    tested[length] += 1
                    if not right[row][length][here + length]:
                        break
                    accepted[length] += 1
                    length += 1
                cycles, committed = cycles + 1, committed + min(length + 1, end - here)
                here += length + 1
    alpha = tuple(a / t if t else 0.0 for a, t in zip(accepted, tested, strict=True))
    tau = committed / max(cycles, 1)
    return ChainAcceptance(alpha, tau, sum(tested), tuple(tested), tuple(accepted), cycles, committed)


def chain_depth(head: TrainedHead) -> int:
    """How deep the chain is that a head is validated with."""
    if isinstance(head, BlockHead):
        return min(DEPTH, head.config.depths)
    return min(DEPTH, head.config.num_heads) if isinstance(head, MedusaHead | HydraHead) else DEPTH


def _right(head: TrainedHead, borrowed: Borrowed, batch: Batch, depth: int) -> list[list[list[bool]]]:
    """[conversation][step][row]: whether that draft is the token two ahead of the row's feature."""
    truth = batch.token_ids[:, 2:]
    by_step = []
    for step, hidden in enumerate(drafted(head, borrowed.embedding, batch.token_ids, batch.inputs[:, :-1], depth)):
        drafts = torch.stack([
            _best(*logit_factors(head, borrowed, step, states, before), borrowed.lm_head.dtype)
            for states, before in zip(hidden[:, :-1], batch.token_ids[:, 1:-1], strict=True)
        ])  # fmt: skip
        drafts = drafts if borrowed.draft_ids is None else borrowed.draft_ids[drafts]
        by_step.append(drafts == truth)
    return torch.stack(by_step, dim=1).tolist()


def _best(states: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows] the likeliest draft of each state."""
    return (states.to(dtype) @ rows.to(dtype).T).argmax(-1)
