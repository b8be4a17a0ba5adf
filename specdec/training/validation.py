"""Validation by what counts: how far a chain of greedy drafts gets on held-out answers."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.training.borrowed import Borrowed, lm_head_rows
from specdec.training.dataset import Batch
from specdec.training.unroll import paired_tokens, unroll

DEPTH = 5


@dataclass(frozen=True, slots=True)
class ChainAcceptance:
    """alpha[n]: accepted / tested drafts at depth n + 1. tau: tokens per cycle of a chain of `DEPTH`. positions: tested.

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
def chain_acceptance(head: EagleHead | EagleHead3, borrowed: Borrowed, batches: Iterable[Batch]) -> ChainAcceptance:
    """Greedy chains against the text itself, teacher-forced: exact for answers that the target gave at temperature 0.

    Every answer is walked cycle by cycle as a decoder would: from one committed token past the accepted drafts and one more.
    """
    tested, accepted = [0] * DEPTH, [0] * DEPTH
    cycles = committed = 0
    for batch in batches:
        right = _right(head, borrowed, batch)
        for row, real in enumerate(batch.judged):
            places = real.nonzero()[:, 0]
            if len(places) < 2:
                continue
            here, end = int(places[0]), int(places[-1])
            while here < end:
                length = 0
                while length < DEPTH and here + length < end:
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


def _right(head: EagleHead | EagleHead3, borrowed: Borrowed, batch: Batch) -> list[list[list[bool]]]:
    """[conversation][step][row]: whether that draft is the token two ahead of the row's feature."""
    embeddings = borrowed.embedding[paired_tokens(batch.token_ids, head.config.inputs)]
    truth = batch.token_ids[:, 2:]
    by_step = []
    lm_head = lm_head_rows(head, borrowed).to(borrowed.lm_head.dtype)
    for hidden in unroll(head, embeddings, batch.inputs[:, :-1], DEPTH):
        states = head.lm_head_states(hidden[:, :-1]).to(lm_head.dtype)
        drafts = torch.cat([(part @ lm_head.T).argmax(-1) for part in torch.split(states, 1)])
        drafts = drafts if borrowed.draft_ids is None else borrowed.draft_ids[drafts]
        by_step.append(drafts == truth)
    return torch.stack(by_step, dim=1).tolist()
