"""What a head shares with its target: embeddings and LM head, whole or the rows of a reduced vocabulary."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.errors import TargetMismatch
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.interfaces.parts import Target
from specdec.nn.packed_linear import linear

STAND_IN = 0
"""What a head reads for a token that its own embeddings lack: a worse draft, never a wrong output."""

LARGE_LOGIT = 100.0
"""Beyond every soft cap, so that a head with one is told from a matrix."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}

Embed = Callable[[Tensor], Tensor]
"""Ids [n] to embeddings [n, hidden], in the head's dtype and on its device."""

LmHead = Callable[[Tensor], Tensor]
"""Normed states [n, hidden] of the head to logits [n, drafts]."""


def embeddings(checkpoint: HeadCheckpoint, target: Target, dtype: torch.dtype, device: torch.device) -> Embed:
    """The head's own embeddings, unless it has none or they are the target's. Raises TargetMismatch for another width."""
    own, facts = checkpoint.embedding, target.facts
    if own is not None and not _same(own, target):
        return lambda ids: functional.embedding(torch.where(ids < len(own), ids, STAND_IN), own)
    width = target.embed(torch.tensor([STAND_IN], device=facts.device)).shape[-1]
    if width != checkpoint.config.hidden_size:
        raise TargetMismatch(f"the target's embeddings are {width} wide; the head's are {checkpoint.config.hidden_size}")
    return lambda ids: target.embed(ids.to(facts.device)).to(device, dtype)


def lm_head_of(checkpoint: HeadCheckpoint, target: Target, device: torch.device) -> LmHead:
    """Logits from the head's own LM head, or from the target's. The head fits the target (`check_fit`)."""
    facts, ids = target.facts, checkpoint.draft_ids
    if (own := checkpoint.lm_head) is not None:
        return linear(own)
    if ids is None:
        return lambda states: target.head(states.to(facts.device, facts.dtype))
    found = shared_rows(target, ids.to(facts.device))
    if found is None:
        return lambda states: target.head(states.to(facts.device, facts.dtype))[:, ids.to(facts.device)].to(device)
    weight, bias = found[0].to(device), None if found[1] is None else found[1].to(device)
    rows = linear(weight, bias)
    return lambda states: rows(states.to(weight.dtype))


def lm_heads_by_depth(
    checkpoint: HeadCheckpoint, target: Target, device: torch.device, own: Sequence[nn.Linear]
) -> tuple[LmHead, ...]:
    """Those of heads that each predict one depth: one for each of them, or a single one that they all borrow."""
    if not own:
        return (lm_head_of(checkpoint, target, device),)
    return tuple(linear(one.weight.detach(), None if one.bias is None else one.bias.detach()) for one in own)


def shared_rows(target: Target, ids: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Rows [ids, hidden] and bias [ids] of the target's LM head; None for one that is no affine map (a soft cap).

    The input embeddings are tried first: models that tie them share their rows without work. Else rows are read off one
    direction of the hidden states at a time.
    """
    facts = target.facts
    size = facts.hidden_size or 0
    bias = target.head(torch.zeros(1, size, dtype=facts.dtype, device=facts.device))[0, ids]
    candidates: list[Callable[[], Tensor]] = [lambda: target.embed(ids), lambda: _rows_by_direction(target, ids, bias)]
    for candidate in candidates:
        rows = candidate()
        if rows.shape == (len(ids), size) and _is_head(target, ids, rows, bias):
            return rows.clone(), bias.clone() if bool(bias.any()) else None
    return None


def _rows_by_direction(target: Target, ids: Tensor, bias: Tensor) -> Tensor:
    facts = target.facts
    directions = torch.eye(facts.hidden_size or 0, dtype=facts.dtype, device=facts.device)
    return torch.cat([(target.head(some)[:, ids] - bias).T for some in torch.split(directions, 64)], dim=1)


def _is_head(target: Target, ids: Tensor, rows: Tensor, bias: Tensor) -> bool:
    """Whether the rows give the target's logits, also where these are large."""
    steps = torch.arange(rows.shape[1], dtype=torch.float64, device=rows.device)
    states = torch.stack([(steps * (1 + turn)).cos() for turn in range(3)])
    states = states * (LARGE_LOGIT / (states @ rows.double().T).abs().max().clamp_min(1e-30))
    expected = target.head(states.to(rows.dtype))[:, ids].double()
    given = states.to(rows.dtype).double() @ rows.double().T + bias.double()
    return bool((given - expected).abs().max() <= TOLERANCE[rows.dtype] * LARGE_LOGIT)


def _same(own: Tensor, target: Target) -> bool:
    """Whether the target's embeddings are these, so that one copy is enough."""
    count = min(len(own), target.facts.vocab_size)
    for first in range(0, count, 8192):
        ids = torch.arange(first, min(first + 8192, count), device=target.facts.device)
        theirs, ours = target.embed(ids), own[first : first + len(ids)]
        if theirs.shape != ours.shape or not torch.equal(theirs.to(ours), ours):
            return False
    return len(own) <= target.facts.vocab_size
