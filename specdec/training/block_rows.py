"""One-pass heads in training: many blocks at a time over a conversation, each behind an anchor of its own.

A block sees the context before its anchor and itself, and no other block. Row i of step s, as in `unroll`, is the row of depth
s behind the anchor at token i - s + 1. *Source: arXiv 2602.06036 (DFlash), which draws anchors anew for each step.*
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from specdec.heads.architectures import TrainedHead
from specdec.heads.block import BlockHead, KeysValues

ANCHORS_AT_ONCE = 32
"""Blocks of one attention mask: most of what a row is masked from is other blocks, where they are many."""


def draw_anchors(head: TrainedHead, judged: Tensor, most: int, generator: torch.Generator) -> Tensor | None:
    """[conversations, rows] bool: up to `most` rows of each that drafts begin with, of those judged; None for other heads."""
    if not isinstance(head, BlockHead):
        return None
    rank = torch.empty(judged.shape).uniform_(generator=generator).to(judged.device).masked_fill(~judged, 2.0)
    first = rank.argsort(dim=1)[:, :most]
    return torch.zeros_like(judged).scatter_(1, first, value=True) & judged


def drafted_blocks(
    head: BlockHead, embedding: Tensor, token_ids: Tensor, features: Tensor, steps: int, begun: Tensor | None
) -> Iterator[Tensor]:
    """As `drafted`, of a one-pass head."""
    conversations, rows = features.shape[:2]
    every = features.new_ones((conversations, rows), dtype=torch.bool) if begun is None else begun
    most = max(int(every.sum(1).max()), 1)
    places = every.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    states = block_states(head, embedding, token_ids, features, places + 1)
    conversation = torch.arange(conversations, device=features.device)[:, None].expand_as(places)
    for step in range(steps):
        there = every.gather(1, places) & (places + step < rows)
        laid = states.new_zeros((conversations, rows, states.shape[-1]))
        index = (conversation[there], (places + step)[there])
        yield laid.index_put(index, states[:, :, step][there])


def block_states(head: BlockHead, embedding: Tensor, token_ids: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
    """[conversations, anchors, depths, hidden] before `norm`.

    token_ids: [conversations, tokens]. features: [conversations, tokens or one fewer, layers, target hidden].
    anchors: [conversations, anchors], the place of the last token of each draft, whose own feature is not seen.
    """
    context = head.context(features)
    known = head.context_keys_values(context, torch.arange(features.shape[1], device=features.device)[None])
    parts = [_blocks(head, embedding, token_ids, known, some) for some in torch.split(anchors, ANCHORS_AT_ONCE, dim=1)]
    states = torch.cat(parts, dim=1)
    return states if head.config.from_anchor else states[:, :, 1:]


def _blocks(head: BlockHead, embedding: Tensor, token_ids: Tensor, known: list[KeysValues], anchors: Tensor) -> Tensor:
    """[conversations, anchors, block, hidden] of one pass."""
    size, (conversations, count) = head.config.block_size, anchors.shape
    ids = torch.full((conversations, count, size), head.config.mask_token_id, device=anchors.device)
    ids[:, :, 0] = token_ids.gather(1, anchors)
    positions = (anchors[:, :, None] + torch.arange(size, device=anchors.device)).flatten(1)
    mask = blocks_mask(anchors, known[0].keys.shape[2], size, causal=head.config.causal)

    def seen(layer: int, own: KeysValues) -> KeysValues:
        return KeysValues(torch.cat((known[layer].keys, own.keys), 2), torch.cat((known[layer].values, own.values), 2))

    embedded = embedding[ids.flatten(1)]
    bias = torch.zeros(mask.shape, dtype=known[0].keys.dtype, device=mask.device).masked_fill_(~mask, -1e9)
    states: Tensor = head(embedded, positions, bias, seen)
    return states.view(conversations, count, size, -1)


def blocks_mask(anchors: Tensor, tokens: int, size: int, *, causal: bool) -> Tensor:
    """[conversations, 1, anchors * size, tokens + anchors * size] bool: the context before the row's anchor, and its block."""
    conversations, count = anchors.shape
    context = torch.arange(tokens, device=anchors.device) < anchors[:, :, None]
    context = context.repeat_interleave(size, dim=1)
    row = torch.arange(count * size, device=anchors.device)
    own = row[:, None] // size == row // size
    if causal:
        own &= row <= row[:, None]
    return torch.cat((context, own.expand(conversations, -1, -1)), dim=2)[:, None]
