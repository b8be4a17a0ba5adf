"""The prefix layer of Hydra heads over the features of a batch: what it said at each sequence's last feature."""

from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from specdec.heads.config import LayerConfig
from specdec.heads.hydra import HydraHead
from specdec.nn.kv_cache import KvCache, LayerShape
from specdec.nn.prefill_batches import prompt_batches
from specdec.nn.tree_mask import additive, chain_mask

CHUNK = 512
"""Features of a prompt per forward."""


class PrefixCache:
    """Keys and values of the features of committed tokens; position i is that of token i. Nothing drafted ever enters."""

    def __init__(self, head: HydraHead, layer: LayerConfig, rows: int) -> None:
        weight = next(head.parameters())
        self._head = head
        self._dtype, self._device = weight.dtype, weight.device
        shape = LayerShape(layer.num_key_value_heads, layer.head_dim, layer.head_dim, self._dtype, self._device)
        self.cache = KvCache([shape], rows)

    @torch.inference_mode()
    def feed(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Append features [new, hidden] to each row, at least one; the layer's output [1, hidden] at the last of each."""
        lengths, counts = list(self.cache.lengths), [len(new) for new in features]
        last: list[Tensor] = []
        for batch in prompt_batches(counts, CHUNK, self._device.type):
            rows = slice(batch.start, batch.stop)
            last += self._feed_rows(batch.start, lengths[rows], features[rows])
        self.cache.lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        return last

    def _feed_rows(self, first_row: int, lengths: Sequence[int], features: Sequence[Tensor]) -> list[Tensor]:
        last: list[Tensor] = [new[:0] for new in features]
        for begin in range(0, max(map(len, features)), CHUNK):
            parts = [new[begin : begin + CHUNK] for new in features]
            starts = [length + min(begin, len(new)) for length, new in zip(lengths, features, strict=True)]
            output = self._forward(first_row, starts, parts)
            for row, part in enumerate(parts):
                if len(part):
                    last[row] = output[row, len(part) - 1 : len(part)]
        return last

    def _forward(self, first_row: int, starts: Sequence[int], parts: Sequence[Tensor]) -> Tensor:
        """[rows, width, hidden] over consecutive features of each row, from these positions on."""
        counts = [len(part) for part in parts]
        width = max(counts)
        self.cache.stage(starts, width, first_row)
        mask = chain_mask(starts, counts, nodes=width, slots=self.cache.staged_width)
        positions = torch.tensor(list(starts))[:, None] + torch.arange(width)
        padded = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
        return self._head.read_features(
            padded,
            positions.to(self._device),
            mask=additive(mask, self._dtype, self._device),
            update=partial(self.cache.update, 0),
        )

    def fork(self, copies: Sequence[int]) -> None:
        """Let row r occur copies[r] times."""
        self.cache = self.cache.fork(copies)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self.cache.keep(rows)

    def join(self, other: Self) -> None:
        """Append the other's rows."""
        self.cache.join(other.cache)
