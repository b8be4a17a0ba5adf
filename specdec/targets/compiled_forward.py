"""The fused forward in shapes that recur, compiled by torch: on a GPU its replays are CUDA graphs.

Nodes are padded to the next width of a ladder, and keys and values are whole buffers; a mask hides what is not written.
So a decode has a handful of shapes, each of which is compiled when it comes up first.
"""

from threading import RLock
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec.interfaces.declarations import Features
from specdec.interfaces.results import HiddenStates
from specdec.nn.grouped_query_attention import FEW_NODES, laid_side_by_side
from specdec.nn.kv_cache import KvCache
from specdec.targets.fused_forward import FusedForward

WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, FEW_NODES)
"""What the nodes of a forward are padded to; a forward of more runs as it is."""

_ONE_THREAD: Final = RLock()
"""Held while the compiler's settings, which are the whole process's, are changed."""

SHAPES = 64
"""Compiled forms that are kept; each is of one width and one number of rows."""


class WholeBuffers:
    """Keys and values [layers, rows, heads, capacity, dim], written where `slots` [rows, nodes] says."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self._keys, self._values, self._slots = keys, values, slots

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write the nodes [rows, heads, nodes, dim] of one layer; the whole of its buffers."""
        for buffer, new in ((self._keys[layer], keys), (self._values[layer], values)):
            where = self._slots[:, None, :, None].expand(new.shape)
            buffer.scatter_(2, where, new)
        return self._keys[layer], self._values[layer]


class CompiledForward:
    """Called as the fused forward is, and gives what that gives but for rounding."""

    def __init__(self, fused: FusedForward) -> None:
        self._fused = fused
        self._decode: Any = torch.compile(_decode, mode="reduce-overhead" if fused.device.type == "cuda" else None)

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any, features: Features
    ) -> tuple[Tensor, HiddenStates]:
        """Post-norm states [rows, nodes, hidden], and the hidden states that were asked for."""
        rows, nodes = ids.shape
        kv: KvCache = cache.layers[0].kv
        width = next((width for width in WIDTHS if width >= nodes), None)
        if width is None or rows != len(kv.lengths):
            return self._fused(ids, positions, mask, cache, features)
        keys, values, slots = kv.whole(width)
        ids, positions = (pad(part, (0, width - nodes)) for part in (ids, positions))
        bias = laid_side_by_side(_widened(mask, rows, width, keys.shape[3]), self._fused.heads // self._fused.kv_heads)
        with _ONE_THREAD, torch._dynamo.config.patch(automatic_dynamic_shapes=False, recompile_limit=SHAPES):
            self._mark(keys, values, bias)
            last, layered = self._decode(self._fused, ids, positions, bias, keys, values, slots, features.layers)
        last = last[:, :nodes]
        return last, HiddenStates(last if features.last else None, None if layered is None else layered[:, :nodes])

    def head(self, states: Tensor) -> Tensor:
        """Logits of post-norm states."""
        return self._fused.head(states)

    def _mark(self, keys: Tensor, values: Tensor, bias: Tensor) -> None:
        """On a CPU one form serves every capacity; CUDA graphs want buffers that stay where they are."""
        if self._fused.device.type == "cuda":
            for buffer in (keys, values):
                torch._dynamo.mark_static_address(buffer)
        else:
            for tensor in (keys, values, bias):
                torch._dynamo.mark_dynamic(tensor, 3)


def _decode(
    fused: FusedForward,
    ids: Tensor,
    positions: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    layers: tuple[int, ...],
) -> tuple[Tensor, Tensor | None]:
    """Last states, and the inputs of the layers that were asked for."""
    return fused.decode(ids, positions, bias, WholeBuffers(keys, values, slots), layers)


def _widened(mask: Tensor, rows: int, width: int, capacity: int) -> Tensor:
    """The mask [rows or 1, 1, nodes, slots] for `width` nodes and all slots; padded nodes see the first slot only."""
    nodes, slots = mask.shape[2:]
    wide = mask.new_full((rows, 1, width, capacity), torch.finfo(mask.dtype).min)
    wide[:, :, :nodes, :slots] = mask
    wide[:, :, nodes:, 0] = 0
    return wide
