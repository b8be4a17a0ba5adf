"""A cache of attention keys and values that gives every token its own path, in path order, in a buffer of fixed length.

Slots lie in one pool, and a row is a list of slots: a commit moves nothing, and where a token lies changes no bit of what is
read. Slot 0 is all zeros and fills each path up to the fixed length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.nn.kv_cache import LayerShape

BLOCK = 256
"""Pools grow by multiples of so many slots."""

ZEROS = 0
"""The slot that pads a path."""


class PathCache:
    """Keys and values by layer and slot; rows and drafts as lists of slots.

    shapes: by layer index; None for a layer that caches nothing. scratch: slots of the rows that only fill a forward up.
    paths: by row, the slots of its committed tokens in order. nodes: by row, the slots of its draft's nodes.
    """

    def __init__(self, shapes: Sequence[LayerShape | None], rows: int, scratch: int) -> None:
        self.shapes = tuple(shapes)
        self.scratch = range(1, 1 + scratch)
        self.paths: list[list[int]] = [[] for _ in range(rows)]
        self.nodes: list[list[int]] = [[] for _ in range(rows)]
        self.staged_width = 0
        self.staged_starts: tuple[int, ...] = (0,)
        self._free: list[int] = []
        self._slots = 0
        self._keys = [_pool(shape, 0, 0 if shape is None else shape.key_dim) for shape in self.shapes]
        self._values = [_pool(shape, 0, 0 if shape is None else shape.value_dim) for shape in self.shapes]
        self._written: dict[torch.device, Tensor] = {}
        self._read: dict[torch.device, Tensor] = {}
        self._resize(1 + scratch)
        self._free = self._free[: self._slots - 1 - scratch]

    @property
    def lengths(self) -> list[int]:
        """Committed tokens by row."""
        return [len(path) for path in self.paths]

    def grow(self, row: int, nodes: int) -> None:
        """Let the draft of a row have at least so many nodes."""
        count = nodes - len(self.nodes[row])
        if count <= 0:
            return
        if len(self._free) < count:
            self._resize(max(self._slots + count, 2 * self._slots))
        self.nodes[row] += reversed(self._free[-count:])
        del self._free[-count:]

    def stage(self, written: Sequence[int], paths: Sequence[Sequence[int]], length: int) -> None:
        """Announce that every layer's next `update` writes one token into each of these slots, and reads these paths.

        paths: by token, its slots in path order, its own last; padded to `length` with zeros.
        """
        table = torch.tensor([[*path, *[ZEROS] * (length - len(path))] for path in paths]).view(-1)
        slots = torch.tensor(list(written))
        devices = {shape.device for shape in self.shapes if shape is not None}
        self._written = {device: slots.to(device) for device in devices}
        self._read = {device: table.to(device) for device in devices}
        self.staged_width, self.staged_starts = length, (length - 1,)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the staged tokens [tokens, heads, 1, dim] of one layer; their paths' [tokens, heads, length, dim]."""
        return self._through(self._keys[layer], keys), self._through(self._values[layer], values)

    def _through(self, pool: Tensor, new: Tensor) -> Tensor:
        pool.index_copy_(0, self._written[pool.device], new[:, :, 0])
        read = pool.index_select(0, self._read[pool.device])
        return read.view(len(new), -1, *pool.shape[1:]).transpose(1, 2)

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Append these nodes of each row's draft to its path, and forget the others. Nothing is moved."""
        for row, nodes in enumerate(kept):
            slots = self.nodes[row]
            staying = set(nodes)
            self.paths[row] += [slots[node] for node in nodes]
            self._free += [slot for node, slot in reversed(list(enumerate(slots))) if node not in staying]
            self.nodes[row] = []

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending; slots that none of them shares become free."""
        before = self._in_use()
        self.paths, self.nodes = [self.paths[row] for row in rows], [self.nodes[row] for row in rows]
        self._free += sorted(before - self._in_use(), reverse=True)

    def fork(self, copies: Sequence[int]) -> "PathCache":
        """A cache of its own in which row r occurs copies[r] times, in order; the copies share slots. Drafts stay behind."""
        twin = PathCache(self.shapes, sum(copies), len(self.scratch))
        twin._slots = self._slots
        twin._keys, twin._values = [pool.clone() for pool in self._keys], [pool.clone() for pool in self._values]
        twin.paths = [list(path) for path, count in zip(self.paths, copies, strict=True) for _ in range(count)]
        used = twin._in_use() | {ZEROS, *self.scratch}
        twin._free = [slot for slot in reversed(range(self._slots)) if slot not in used]
        return twin

    def join(self, other: "PathCache") -> None:
        """Append the rows of another cache of these layers, each slot copied once. Drafts of `other` stay behind."""
        theirs = sorted(set().union(*other.paths))
        if len(self._free) < len(theirs):
            self._resize(max(self._slots + len(theirs), 2 * self._slots))
        mine = [self._free.pop() for _ in theirs]
        for pool, origin in zip((*self._keys, *self._values), (*other._keys, *other._values), strict=True):
            pool[mine] = origin[theirs]
        place = dict(zip(theirs, mine, strict=True))
        self.paths += [[place[slot] for slot in path] for path in other.paths]
        self.nodes += [[] for _ in other.paths]

    def contents(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """[heads, length, dim] keys and values of one row's committed tokens."""
        return self.at(layer, self.paths[row])

    def at(self, layer: int, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """[heads, slots, dim] keys and values in these slots."""
        index = torch.tensor(list(slots), dtype=torch.int64, device=self._keys[layer].device)
        return self._keys[layer][index].transpose(0, 1), self._values[layer][index].transpose(0, 1)

    def check_integrity(self) -> None:
        """Raise NumericsError unless every slot is of one use, inside the pool, and the padding is zero."""
        used, free = self._in_use(), set(self._free)
        lists = [path + nodes for path, nodes in zip(self.paths, self.nodes, strict=True)]
        if any(len(set(slots)) != len(slots) for slots in lists) or len(free) != len(self._free):
            raise NumericsError("a row of the cache names a slot twice, or the list of free slots does")
        if used & free or (used | free) != set(range(1 + len(self.scratch), self._slots)):
            raise NumericsError(f"{len(used)} slots in use and {len(free)} free are not the {self._slots} of the cache")
        if any(bool(pool[ZEROS].any()) for pool in (*self._keys, *self._values) if len(pool)):
            raise NumericsError("the slot of zeros that pads a path has been written to")

    def _in_use(self) -> set[int]:
        return set().union(*self.paths, *self.nodes)

    def _resize(self, wanted: int) -> None:
        slots = -(-wanted // BLOCK) * BLOCK
        self._keys = [_grown(pool, slots) for pool in self._keys]
        self._values = [_grown(pool, slots) for pool in self._values]
        self._free = [*reversed(range(self._slots, slots)), *self._free]
        self._slots = slots


def _pool(shape: LayerShape | None, slots: int, dim: int) -> Tensor:
    """[slots, heads, dim] of zeros: what a mask hides must be finite, since 0 * NaN is NaN."""
    if shape is None:
        return torch.zeros(0, 0, 0)
    return torch.zeros(slots, shape.heads, dim, dtype=shape.dtype, device=shape.device)


def _grown(pool: Tensor, slots: int) -> Tensor:
    grown = pool.new_zeros(slots, *pool.shape[1:])
    grown[: len(pool)] = pool
    return grown
