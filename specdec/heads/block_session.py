"""Drafting with one-pass heads: the context in a stable cache, one pass over the block at a step's first question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from specdec.errors import CheckpointError, TargetMismatch
from specdec.heads.block import BlockHead, KeysValues
from specdec.heads.loading import LoadedHead, name_of
from specdec.heads.shared_weights import Embed, LmHead, embeddings, lm_head_of
from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.nn.kv_cache import KvCache, LayerShape
from specdec.nn.tree_mask import additive

CHUNK = 512
"""Context rows per projection."""

MOST_PENDING = 64
"""Context rows of a sequence that wait for a question."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftingBlock:
    """A one-pass head that is ready to draft. target_ids: [drafts] of its columns; None: all of the target's."""

    head: BlockHead
    embed: Embed
    lm_head: LmHead
    target_ids: Tensor | None
    dtype: torch.dtype
    device: torch.device
    name: str

    def features(self, hidden: HiddenStates) -> Tensor:
        """[tokens, layers, target hidden] of the committed tokens."""
        if hidden.layers is None:
            raise TargetMismatch("the target gave no layer inputs")
        return hidden.layers.to(self.device, self.dtype)

    def cache(self, rows: int) -> KvCache:
        """An empty cache of the head's layers."""
        config = self.head.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim, self.dtype, self.device)
        return KvCache([shape] * config.num_layers, rows)

    def feed(self, cache: KvCache, features: Sequence[Tensor]) -> None:
        """Append the context rows of each row's features [tokens, layers, target hidden] to the cache."""
        counts = [len(part) for part in features]
        if not any(counts):
            return
        starts = list(cache.lengths)
        padded = torch.zeros((len(counts), max(counts), *features[0].shape[1:]), dtype=self.dtype, device=self.device)
        for row, part in enumerate(features):
            padded[row, : counts[row]] = part
        positions = (torch.tensor(starts)[:, None] + torch.arange(max(counts))).to(self.device)
        cache.stage(starts, max(counts))
        for layer, own in enumerate(self.head.context_keys_values(self.head.context(padded), positions)):
            cache.update(layer, own.keys, own.values)
        cache.commit([range(count) for count in counts])

    def rows(self, cache: KvCache, anchors: Sequence[int]) -> Tensor:
        """[rows, depths, drafts] logits of the block behind each row's context. anchors: the last token of each."""
        config, lengths = self.head.config, list(cache.lengths)
        size = config.block_size
        ids = torch.full((len(anchors), size), config.mask_token_id, device=self.device)
        ids[:, 0] = torch.tensor(anchors, device=self.device)
        embedded = self.embed(ids.flatten()).view(len(anchors), size, -1)
        positions = (torch.tensor(lengths)[:, None] + torch.arange(size)).to(self.device)
        cache.stage(lengths, size)
        mask = block_mask(lengths, size, slots=cache.staged_width, causal=config.causal)
        states = self.head(
            embedded,
            positions,
            additive(mask, self.dtype, self.device),
            lambda layer, own: KeysValues(*cache.update(layer, own.keys, own.values)),
        )
        cache.commit([()] * len(anchors))
        read = states if config.from_anchor else states[:, 1:]
        return self.lm_head(self.head.lm_head_states(read.flatten(0, 1))).view(len(anchors), config.depths, -1)


def block_mask(lengths: Sequence[int], size: int, *, slots: int, causal: bool) -> Tensor:
    """[rows, 1, block, slots] bool: the context before a row's block, and of the block all, or what stands before (causal)."""
    slot, start = torch.arange(slots), torch.tensor(lengths)[:, None, None]
    last = start + (torch.arange(size)[:, None] if causal else size - 1)
    return (slot <= last)[:, None].expand(len(lengths), 1, size, slots)


def ready_block(loaded: LoadedHead) -> DraftingBlock:
    """A one-pass head as drafting runs it, with the embeddings and the LM head that it borrows."""
    checkpoint, head = loaded.checkpoint, loaded.checkpoint.head
    if not isinstance(head, BlockHead):
        raise CheckpointError(f"the head is of kind '{checkpoint.config.kind}'; drafter '{checkpoint.config.kind}' would work")
    return DraftingBlock(
        head,
        embeddings(checkpoint, loaded.target, loaded.dtype, loaded.device),
        lm_head_of(checkpoint, loaded.target, loaded.device),
        checkpoint.draft_ids,
        loaded.dtype,
        loaded.device,
        name_of(loaded.folder),
    )


class BlockSession(DraftSession):
    """Of each sequence its last token, the context rows that the cache lacks, and the rows of the block once they were asked.

    The last token is no context yet: its features come with the step that commits it.
    """

    def __init__(self, drafting: DraftingBlock, starts: Sequence[DraftStart]) -> None:
        self._drafting = drafting
        self._anchors = [start.first_token for start in starts]
        self._pending: list[list[Tensor]] = [[] for _ in starts]
        self._rows: list[Tensor | None] = [None] * len(starts)
        self.cache = drafting.cache(len(starts))
        self._feed([drafting.features(start.hidden) for start in starts])

    @torch.inference_mode()
    def _feed(self, features: Sequence[Tensor]) -> None:
        for begin in range(0, max(map(len, features), default=0), CHUNK):
            self._drafting.feed(self.cache, [part[begin : begin + CHUNK] for part in features])

    def _feed_pending(self) -> None:
        """All context rows that wait go into the cache."""
        if not any(self._pending):
            return
        empty = next(part for parts in self._pending for part in parts)[:0]
        self._feed([torch.cat(parts) if parts else empty for parts in self._pending])
        self._pending = [[] for _ in self._pending]

    @torch.inference_mode()
    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """One pass for all sequences at the first question since the last commit."""
        if any(f is not None and rows is None for f, rows in zip(frontiers, self._rows, strict=True)):
            self._feed_pending()
            self._rows = list(self._drafting.rows(self.cache, self._anchors))
        return [self._answer(rows, frontier) for rows, frontier in zip(self._rows, frontiers, strict=True)]

    def _answer(self, rows: Tensor | None, frontier: Frontier | None) -> Proposal | None:
        if rows is None or frontier is None:
            return None
        depths = [min(frontier.tree.depths[node], len(rows) - 1) for node in frontier.nodes]
        logits = rows[depths]
        markov = self._drafting.head.markov_head
        if markov is not None:
            before = [frontier.tree.tokens[node] for node in frontier.nodes]
            logits = logits + markov(torch.tensor(before, device=logits.device))
        return Distributions(logits, self._drafting.target_ids, made_by=self._drafting.name)

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Pend the features of what was committed; the rows are forgotten."""
        for row, news in enumerate(committed):
            self._pending[row].append(self._drafting.features(news.hidden))
            self._anchors[row] = news.tokens[-1]
        self._rows = [None] * len(committed)
        if any(sum(map(len, parts)) > MOST_PENDING for parts in self._pending):
            self._feed_pending()

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._anchors = [self._anchors[row] for row in rows]
        self._pending = [self._pending[row] for row in rows]
        self._rows = [self._rows[row] for row in rows]
        self.cache.keep(rows)

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self._anchors += other._anchors
        self._pending += other._pending
        self._rows += other._rows
        self.cache.join(other.cache)
