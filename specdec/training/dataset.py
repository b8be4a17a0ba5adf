"""Batches from shards of features, in an order that a seed and an epoch fix."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import SpecError
from specdec.training.conversations import Conversation
from specdec.training.features import length_batches, read_shard

COLUMNS = ("token_ids", "spoken", "features", "top_ids", "top_logits")

OWN_AGREEMENT = 0.9
"""Below 1: the target scored text in another batch, in bfloat16, than the one that wrote it."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Conversations padded on the right.

    token_ids, judged, real: [conversations, width]; judged: the target's distribution there is about a word of the assistant;
    real: no padding.
    features: [conversations, width, hidden]; inputs: what the head is fed, the same or [.., layers, hidden].
    top_ids, top_logits: [conversations, width, k].
    """

    token_ids: Tensor
    judged: Tensor
    real: Tensor
    features: Tensor
    inputs: Tensor
    top_ids: Tensor
    top_logits: Tensor

    @property
    def tokens(self) -> int:
        """Slots, padding included."""
        return self.token_ids.numel()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Batch":
        """On a device, with what the head is fed in `dtype`."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self)}
        return Batch(**{**moved, "inputs": moved["inputs"].to(dtype)})

    def silent(self) -> "Batch":
        """The same with nothing to learn from."""
        return replace(self, judged=torch.zeros_like(self.judged))


class FeatureSet:
    """The conversations of some shards, memory-mapped."""

    def __init__(self, shards: Sequence[Path], *, layers: bool) -> None:
        self.paths = tuple(shards)
        self._columns = [read_shard(path, (*COLUMNS, "lengths", *(("layers",) if layers else ()))) for path in shards]
        self._inputs = "layers" if layers else "features"
        self._where: list[tuple[int, int, int]] = []
        for shard, columns in enumerate(self._columns):
            start = 0
            for length in columns["lengths"].tolist():
                self._where.append((shard, start, length))
                start += length
        if not self._where:
            raise SpecError("no conversation to learn from: the folder of features has no shard yet")

    def __len__(self) -> int:
        return len(self._where)

    @property
    def tokens(self) -> int:
        """Of all conversations."""
        return sum(length for _, _, length in self._where)

    def batches(self, tokens_per_batch: int, order: torch.Generator | None) -> list[list[int]]:
        """Places of conversations by batch: those of like length together; batches in random order if `order` is given."""
        lengths = [length for _, _, length in self._where]
        if order is None:
            return list(length_batches(lengths, tokens_per_batch))
        shuffle = torch.empty(len(lengths)).uniform_(generator=order).argsort().tolist()
        jitter = torch.empty(len(lengths)).uniform_(0.9, 1.1, generator=order).tolist()
        places = sorted(shuffle, key=lambda place: lengths[place] * jitter[place])
        groups = _in_order(places, lengths, tokens_per_batch)
        return [groups[g] for g in torch.empty(len(groups)).uniform_(generator=order).argsort().tolist()]

    def load(self, places: Sequence[int]) -> Batch:
        """The conversations at these places, padded to the longest."""
        lengths = torch.tensor([self._where[place][2] for place in places])
        width = int(lengths.max())
        padded = {name: self._padded(name, places, width) for name in (*COLUMNS, *{self._inputs} - {"features"})}
        spoken = padded["spoken"].bool()
        judged = torch.cat((spoken[:, 1:], torch.zeros_like(spoken[:, :1])), dim=1)
        return Batch(
            token_ids=padded["token_ids"].long(),
            judged=judged,
            real=torch.arange(width) < lengths[:, None],
            features=padded["features"],
            inputs=padded[self._inputs],
            top_ids=padded["top_ids"],
            top_logits=padded["top_logits"],
        )

    def _padded(self, name: str, places: Sequence[int], width: int) -> Tensor:
        first = self._columns[0][name]
        padded = torch.zeros((len(places), width, *first.shape[1:]), dtype=first.dtype)
        for row, place in enumerate(places):
            shard, start, length = self._where[place]
            padded[row, :length] = self._columns[shard][name][start : start + length]
        return padded

    def greedy_only(self) -> "FeatureSet":
        """Only the conversations whose words are the target's own best ones, all but a few: its answers at temperature 0."""
        kept = copy(self)
        kept._where = [
            (shard, start, length)
            for shard, start, length in self._where
            if self._agreement(shard, start, length) >= OWN_AGREEMENT
        ]
        if not kept._where:
            raise SpecError("no held-out conversation is the target's own answer at temperature 0; acceptance needs some")
        return kept

    def _agreement(self, shard: int, start: int, length: int) -> float:
        """Share of the assistant's tokens that the target thought likeliest."""
        columns = self._columns[shard]
        tokens, spoken = columns["token_ids"][start : start + length], columns["spoken"][start : start + length]
        same = columns["top_ids"][start : start + length - 1, 0] == tokens[1:]
        return float(same[spoken[1:]].float().mean())

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often the assistant said each token."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for columns in self._columns:
            counts += torch.bincount(columns["token_ids"][columns["spoken"]].long(), minlength=vocab_size)
        return counts

    def feature_rms(self) -> float:
        """Root mean square of what the head is fed."""
        squares = [columns[self._inputs][:4096].float().square().mean() for columns in self._columns]
        return float(torch.stack(squares).mean().sqrt())


def spoken_counts(conversations: Iterable[Conversation], vocab_size: int) -> Tensor:
    """[vocab] how often the assistant said each token."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for conversation in conversations:
        ids = torch.tensor(conversation.token_ids)[torch.tensor(conversation.spoken)]
        counts += torch.bincount(ids, minlength=vocab_size)
    return counts


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The `size` most frequent tokens, ids ascending; ties go to the lower id. *Source: arXiv 2503.01840, published code.*"""
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def coverage(counts: Tensor, draft_ids: Tensor) -> float:
    """The share of all occurrences that these tokens are."""
    return float(counts[draft_ids].sum() / counts.sum().clamp_min(1))


def _in_order(places: Sequence[int], lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Neighbours in `places`, as many as fit when padded to the longest of them."""
    groups: list[list[int]] = []
    longest = 0
    for place in places:
        longest = max(longest, lengths[place])
        if not groups or longest * (len(groups[-1]) + 1) > tokens_per_batch:
            groups.append([])
            longest = lengths[place]
        groups[-1].append(place)
    return groups
