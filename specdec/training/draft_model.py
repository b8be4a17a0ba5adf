"""Distilling a draft language model from its target: samples, loss, and acceptance on held-out answers.

*Source: arXiv 2310.08461 (DistillSpec), algorithm 1.*
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.training.conversations import Conversation
from specdec.training.row_losses import RowLoss, row_losses

ROWS_AT_ONCE = 256
"""Rows of both models' logits in float32."""

CHAIN = 5
"""Depth of the chain that tau is of."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """token_ids [texts, width], padded on the right; judged [texts, width]: a word of the assistant follows."""

    token_ids: Tensor
    judged: Tensor


@dataclass(frozen=True, slots=True)
class Acceptance:
    """alpha: mean of sum min(p, q) at temperature 1, which speculative sampling accepts; by_text: of each text.

    tau: tokens per cycle of a greedy chain of `CHAIN` on these texts: exact where they are the target's greedy answers.
    """

    alpha: float
    tau: float
    positions: int
    by_text: tuple[float, ...]


def texts_of(conversations: Sequence[Conversation], device: torch.device) -> Texts:
    """Padded to the longest."""
    width = max(len(one.token_ids) for one in conversations)
    ids = torch.zeros((len(conversations), width), dtype=torch.long)
    judged = torch.zeros((len(conversations), width), dtype=torch.bool)
    for row, one in enumerate(conversations):
        ids[row, : len(one.token_ids)] = torch.tensor(one.token_ids)
        judged[row, : len(one.token_ids)] = torch.tensor(one.judged)
    return Texts(ids.to(device), judged.to(device))


@torch.no_grad()
def sampled(
    model: Any, asked: Sequence[Conversation], count: int, temperature: float, stops: frozenset[int], draws: torch.Generator
) -> list[Conversation]:
    """Each conversation up to its first answer, and up to `count` tokens that the model answers, its end included."""
    prompts = [one.token_ids[: one.spoken.index(True)] for one in asked]
    width = max(map(len, prompts))
    device = next(model.parameters()).device
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=device)
    fresh = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in prompts], device=device)
    positions, cache = (mask.cumsum(1) - 1).clamp_min(0), None
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    said: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        known: dict[str, Any] = {} if cache is None else {name: cache}
        output = model(input_ids=fresh, attention_mask=mask, position_ids=positions, use_cache=True, **known)
        cache, logits = output[name if name in output else "past_key_values"], output.logits[:, -1].float()
        uniform = torch.empty(logits.shape).uniform_(generator=draws).clamp_(1e-20, 1 - 1e-7)
        fresh = (logits / temperature - torch.log(-torch.log(uniform)).to(device)).argmax(-1, keepdim=True)
        for text, token in zip(said, fresh[:, 0].tolist(), strict=True):
            if not text or text[-1] not in stops:
                text.append(token)
        if all(text[-1] in stops for text in said):
            break
        positions, mask = positions[:, -1:] + 1, torch.cat((mask, torch.ones_like(mask[:, :1])), 1)
    return [
        Conversation((*ids, *text), (False,) * len(ids) + (True,) * len(text), one.key)
        for one, ids, text in zip(asked, prompts, said, strict=True)
    ]


def distillation_loss(draft: Any, target: Any, texts: Texts, kind: RowLoss) -> tuple[Tensor, float]:
    """A loss whose gradient is that of the mean over judged rows of `kind`, and this mean."""
    rows = draft(input_ids=texts.token_ids, use_cache=False).logits[texts.judged]
    with torch.no_grad():
        probs = _rows(target, texts)
        grad, total = torch.empty_like(rows), 0.0
        ids = torch.arange(rows.shape[-1], device=rows.device)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            p = probs[part].float().softmax(-1)
            value, slope = row_losses(kind, rows[part].detach().float().clone(), ids.expand_as(p), p)
            grad[part] = (slope / len(rows)).to(grad.dtype)
            total += float(value.sum())
    return (rows * grad).sum(), total / max(len(rows), 1)


@torch.no_grad()
def acceptance(draft: Any, target: Any, batches: Sequence[Texts]) -> Acceptance:
    """On texts, with their own words before each row."""
    by_text, overlaps, cycles, committed = list[float](), 0.0, 0, 0
    positions = 0
    for texts in batches:
        for row in range(len(texts.token_ids)):
            one = Texts(texts.token_ids[row : row + 1], texts.judged[row : row + 1])
            places = one.judged[0].nonzero()[:, 0]
            if not len(places):
                continue
            p, q = _rows(target, one).float().softmax(-1), _rows(draft, one).float().softmax(-1)
            alpha = torch.minimum(p, q).sum(-1)
            by_text.append(float(alpha.mean()))
            overlaps, positions = overlaps + float(alpha.sum()), positions + len(places)
            right = (q.argmax(-1) == one.token_ids[0, places + 1]).tolist()
            here = 0
            while here < len(right):
                good = 0
                while good < CHAIN and here + good < len(right) and right[here + good]:
                    good += 1
                done = min(good + 1, len(right) - here)
                cycles, committed, here = cycles + 1, committed + done, here + done
    return Acceptance(overlaps / max(positions, 1), committed / max(cycles, 1), positions, tuple(by_text))


def _rows(model: Any, texts: Texts) -> Tensor:
    """[judged rows, vocab] logits."""
    rows: Tensor = model(input_ids=texts.token_ids, use_cache=False).logits[texts.judged]
    return rows
