"""A preallocated cache of attention keys and values whose rows have their own lengths.

Layers of one shape share one tensor [layers, rows, heads, capacity, dim], so that a commit moves an accepted path in all of
them at once. Slot s of a row holds its token at position s; draft nodes lie behind the committed tokens until `commit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.errors import NumericsError

BLOCK = 64
"""Capacities are multiples of so many slots."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches per token."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token in this layer."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(slots=True)
class _Group:
    """The buffers of all layers of one shape, [layers, rows, heads, capacity, dim]: the first rows of `room`."""

    layers: tuple[int, ...]
    shape: LayerShape
    room: tuple[Tensor, Tensor]
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.keys, self.values = self.room

    def show(self, rows: int) -> None:
        """Let the buffers have so many rows of the room."""
        self.keys, self.values = (whole[:, :rows] for whole in self.room)


class KvCache:
    """Keys and values by layer and row. `bytes_moved` counts everything that it has written or moved.

    shapes: by layer index; None for a layer that caches nothing. Buffers are allocated by the first `stage`.
    """

    def __init__(self, shapes: Sequence[LayerShape | None], rows: int) -> None:
        self.shapes = tuple(shapes)
        self.lengths = [0] * rows
        self.capacity = 0
        self.bytes_moved = 0
        self.staged_width = 0
        self.staged_starts: tuple[int, ...] = (0,) * rows
        self._filled = 0
        by_shape: dict[LayerShape, list[int]] = {}
        for layer, shape in enumerate(self.shapes):
            if shape is not None:
                by_shape.setdefault(shape, []).append(layer)
        self._groups = [
            _Group(tuple(layers), shape, _buffers(len(layers), rows, shape, 0)) for shape, layers in by_shape.items()
        ]
        self._slot_bytes = sum(shape.slot_bytes for shape in self.shapes if shape is not None)
        self._written: list[list[Tensor]] = [[] for _ in self.shapes]
        self._read: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(self.shapes)

    def stage(self, starts: Sequence[int], count: int, first_row: int = 0) -> None:
        """Announce that every layer's next `update` writes `count` tokens per row, from slot starts[r] of row first_row + r."""
        width = max(starts) + count
        self._reserve(width)
        self.staged_width, self.staged_starts = width, tuple(starts)
        self._filled = max(self._filled, width)
        self.bytes_moved += self._slot_bytes * count * len(starts)
        for group in self._groups:
            keys, values = (whole.narrow(1, first_row, len(starts)) for whole in (group.keys, group.values))
            written = [*_layerwise(keys, starts, count), *_layerwise(values, starts, count)]
            for layer, *targets in zip(group.layers, *written, strict=True):
                self._written[layer] = targets
            reads = zip(keys.narrow(3, 0, width).unbind(0), values.narrow(3, 0, width).unbind(0), strict=True)
            for layer, read in zip(group.layers, reads, strict=True):
                self._read[layer] = read

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the staged tokens [rows, heads, count, dim] of one layer; views of all slots up to the widest row's end.

        Slots beyond a row's own tokens hold finite leftovers, to be masked.
        """
        targets = self._written[layer]
        sources = [keys, values] if len(targets) == 2 else [*keys.unbind(0), *values.unbind(0)]
        torch._foreach_copy_(targets, sources)
        return self._read[layer]

    def whole(self, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """For layers of one shape: the buffers [layers, rows, heads, capacity, dim], and slots [rows, width] of staged tokens.

        There is room for `width` tokens a row, of which those that were not staged are leftovers to be masked.
        """
        (group,) = self._groups
        self._reserve(max(self.staged_starts) + width)
        starts = torch.tensor(self.staged_starts, device=group.shape.device)
        return group.keys, group.values, starts[:, None] + torch.arange(width, device=group.shape.device)

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep these draft nodes of each row, by their offset from the row's length, ascending; forget all others."""
        for row, offsets in enumerate(kept):
            length = self.lengths[row]
            first = next((place for place, offset in enumerate(offsets) if offset != place), len(offsets))
            if first < len(offsets):
                self._move(row, [length + offset for offset in offsets[first:]], length + first)
            self.lengths[row] = length + len(offsets)
        self._filled = max(self.lengths, default=0)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending; the others move up with their draft nodes."""
        filled = self._filled
        for place, row in enumerate(rows):
            if place != row:
                for group in self._groups:
                    for buffer in (group.keys, group.values):
                        buffer[:, place, :, :filled] = buffer[:, row, :, :filled]
                self.bytes_moved += self._slot_bytes * filled
        self.lengths = [self.lengths[row] for row in rows]
        for group in self._groups:
            group.show(len(rows))

    def join(self, other: "KvCache") -> None:
        """Append the rows of another cache of these layers; draft nodes of `other` are left behind.

        They are written where rows have left, as far as there is room.
        """
        first, rows = len(self.lengths), len(self.lengths) + len(other.lengths)
        filled = max(other.lengths, default=0)
        self._reserve(filled, rows)
        for mine, theirs in zip(self._groups, other._groups, strict=True):
            mine.show(rows)
            mine.keys[:, first:, :, :filled] = theirs.keys[..., :filled, :]
            mine.values[:, first:, :, :filled] = theirs.values[..., :filled, :]
        self.lengths += other.lengths
        self._filled = max(self._filled, filled)
        self.bytes_moved += self._slot_bytes * filled * len(other.lengths)

    def fork(self, copies: Sequence[int]) -> "KvCache":
        """A new cache in which row r occurs copies[r] times, in order; draft nodes are left behind."""
        origin = [row for row, count in enumerate(copies) for _ in range(count)]
        twin = KvCache(self.shapes, len(origin))
        twin.lengths = [self.lengths[row] for row in origin]
        filled = max(twin.lengths, default=0)
        twin._reserve(filled)
        twin._filled = filled
        for mine, theirs in zip(self._groups, twin._groups, strict=True):
            theirs.keys[..., :filled, :] = mine.keys[:, origin, :, :filled]
            theirs.values[..., :filled, :] = mine.values[:, origin, :, :filled]
        twin.bytes_moved = self._slot_bytes * filled * len(origin)
        return twin

    def contents(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """[heads, length, dim] keys and values of one row's committed tokens."""
        group = next(g for g in self._groups if layer in g.layers)
        place, length = group.layers.index(layer), self.lengths[row]
        return group.keys[place, row, :, :length], group.values[place, row, :, :length]

    def check_integrity(self) -> None:
        """Raise NumericsError unless lengths and buffers agree."""
        for group in self._groups:
            if group.keys.shape[1] != len(self.lengths) or group.keys.shape[3] != self.capacity:
                raise NumericsError(f"cache buffers {tuple(group.keys.shape)} for {len(self.lengths)} rows x {self.capacity}")
        if max(self.lengths, default=0) > self.capacity:
            raise NumericsError(f"a row has {max(self.lengths)} cached tokens; the cache holds {self.capacity}")

    def _reserve(self, slots: int, rows: int = 0) -> None:
        """Make room for so many slots of each row, and for so many rows."""
        own = len(self.lengths)
        if slots <= self.capacity and all(rows <= group.room[0].shape[1] for group in self._groups):
            return
        if slots > self.capacity:
            wanted = max(slots, 2 * self.capacity)
            self.capacity = -(-wanted // BLOCK) * BLOCK
        for group in self._groups:
            old_keys, old_values = group.keys, group.values
            group.room = _buffers(len(group.layers), max(own, rows), group.shape, self.capacity)
            group.show(own)
            group.keys[..., : self._filled, :] = old_keys[..., : self._filled, :]
            group.values[..., : self._filled, :] = old_values[..., : self._filled, :]
        self.bytes_moved += self._slot_bytes * self._filled * len(self.lengths)

    def _move(self, row: int, sources: list[int], target: int) -> None:
        """Gather these slots of a row, in all layers at once, to consecutive ones from `target` on."""
        for group in self._groups:
            index = torch.tensor(sources, device=group.shape.device)
            for buffer in (group.keys, group.values):
                slots = buffer[:, row]
                slots[:, :, target : target + len(sources)] = slots.index_select(2, index)
        self.bytes_moved += self._slot_bytes * len(sources)


def _buffers(layers: int, rows: int, shape: LayerShape, capacity: int) -> tuple[Tensor, Tensor]:
    """Zeros: what a mask hides must be finite, since 0 * NaN is NaN. They may be written outside of inference mode, too."""
    size = (layers, rows, shape.heads, capacity)
    with torch.inference_mode(False):
        return (
            torch.zeros((*size, shape.key_dim), dtype=shape.dtype, device=shape.device),
            torch.zeros((*size, shape.value_dim), dtype=shape.dtype, device=shape.device),
        )


def _layerwise(buffer: Tensor, starts: Sequence[int], count: int) -> list[tuple[Tensor, ...]]:
    """Where new tokens go, by layer: one view for all rows where they start at one slot, else one view per row."""
    if min(starts) == max(starts):
        return [buffer.narrow(3, starts[0], count).unbind(0)]
    return [buffer.select(1, row).narrow(2, start, count).unbind(0) for row, start in enumerate(starts)]
