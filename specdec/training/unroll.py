"""Training-time test: the steps of drafting, all positions at once, on the head's own predictions.

Row i pairs feature i with token i + 1 (unshifted: token i) and predicts feature i + 1. In step s its feature is the head's own
prediction, made in step s - 1 by row i - 1, and its token still the text's; it sees the pairs of true features up to row i - s,
and along the draft that led to it one pair of each step between. So row i of step s is a draft of depth s + 1 that began after
token i - s + 1.
*Source: arXiv 2503.01840, section 3.2; for EAGLE-1 heads the same, with its feature pairs.*
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec.heads.architectures import TrainedHead
from specdec.heads.block import BlockHead
from specdec.heads.config import Inputs
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.hydra import HydraHead
from specdec.heads.medusa import MedusaHead
from specdec.training.block_rows import drafted_blocks
from specdec.training.spec import StepsSpec


def num_steps(head: TrainedHead, spec: StepsSpec, progress: float) -> int:
    """Drafting steps to be learnt from at this share of the budget: of heads that each predict one depth, all."""
    if isinstance(head, MedusaHead | HydraHead):
        return head.config.num_heads
    if isinstance(head, BlockHead):
        return head.config.depths
    return spec.end if progress >= spec.switch_at else spec.start


def drafted(
    head: TrainedHead, embedding: Tensor, token_ids: Tensor, features: Tensor, steps: int, begun: Tensor | None = None
) -> Iterator[Tensor]:
    """Per step the head's states [conversations, rows, hidden]; row i >= s of step s predicts feature i + 1 and token i + 2.

    embedding: [vocab, hidden] the target's. token_ids: [conversations, rows + 1]. features: [conversations, rows, ...].
    begun: [conversations, rows] bool, of one-pass heads the rows with which drafts begin; None: all. Other drafts are 0.
    """
    if isinstance(head, BlockHead):
        yield from drafted_blocks(head, embedding, token_ids, features, steps, begun)
    elif isinstance(head, MedusaHead):
        for step, states in enumerate(head(features)[:steps]):
            yield _begun_before(states, step)
    elif isinstance(head, HydraHead):
        yield from _grounded(head, embedding[token_ids[:, 1:]], features, steps)
    else:
        yield from unroll(head, embedding[paired_tokens(token_ids, head.config.inputs)], features, steps)


def _grounded(head: HydraHead, embeddings: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
    """Head s reads the feature of the row from which a draft began, and the s + 1 tokens of the text that follow."""
    rows = features.shape[1]
    read = head.read_features(features, torch.arange(rows, device=features.device)[None])
    for step in range(steps):
        if (begun := rows - step) <= 0:
            yield torch.zeros_like(read)
            continue
        following = torch.stack([embeddings[:, later : later + begun] for later in range(step + 1)], dim=2)
        states = head(step, read[:, :begun], following)
        yield torch.cat((torch.zeros_like(read[:, :step]), states), dim=1)


def _begun_before(states: Tensor, step: int) -> Tensor:
    """The states of a draft of depth step + 1 by the row at which it ends; they are given by that from which it began."""
    begun = max(states.shape[1] - step, 0)
    return torch.cat((torch.zeros_like(states[:, :step]), states[:, :begun]), dim=1)


def paired_tokens(token_ids: Tensor, inputs: Inputs) -> Tensor:
    """The tokens [conversations, rows] that go with all features but the last, as drafting pairs them."""
    return token_ids[:, 1:] if inputs.is_shifted else token_ids[:, :-1]


def unroll(head: EagleHead | EagleHead3, embeddings: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
    """Per step the head's hidden states [conversations, rows, hidden]; row i is meaningful from step i on backwards (i >= s).

    embeddings: [conversations, rows, hidden] of `paired_tokens`. features: [conversations, rows, ...].
    """
    rows = features.shape[1]
    positions = torch.arange(rows, device=features.device)[None]
    cache = _Growing()
    hidden = head.input_projection(features)
    for step in range(steps):
        mask = None if step == 0 else step_mask(rows, step, features.device)
        hidden = head(embeddings, hidden, positions, mask=mask, update=cache if steps > 1 else None)
        yield hidden
        hidden = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, :-1]), dim=1)


def step_mask(rows: int, step: int, device: torch.device) -> Tensor:
    """Additive [1, 1, rows, (step + 1) * rows]: true pairs up to row i - step, then row i - step + r of each step r."""
    row = torch.arange(rows, device=device)
    blocks = [row[None, :] <= row[:, None] - step]
    blocks += [row[None, :] == row[:, None] - step + later for later in range(1, step + 1)]
    seen = torch.cat(blocks, dim=1)
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, -1e9)[None, None]


class _Growing:
    """Keys and values of all steps so far, end to end."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.kept.append((keys, values))
        return torch.cat([k for k, _ in self.kept], 2), torch.cat([v for _, v in self.kept], 2)
