"""specdec's KV cache in the shape that transformers' models write to."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specdec.nn.kv_cache import KvCache, LayerShape
from specdec.nn.path_kv_cache import PathCache


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of our cache. It gives full-length keys also where the model's attention slides: the mask does the window."""

    is_sliding = False

    def __init__(self, kv: KvCache | PathCache, layer: int) -> None:
        super().__init__()
        self.kv = kv
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: our cache owns the buffers."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.kv.update(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.kv.staged_width, 0

    def get_seq_length(self) -> int:
        """Slots before the staged ones; right where all staged rows start at the same slot."""
        return self.kv.staged_starts[0]

    def get_max_length(self) -> int:
        return -1


class ShapeLayer(CacheLayerMixin):  # type: ignore[misc]
    """Remembers what a layer would cache, in one forward without a past."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.kv_shape: LayerShape | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: nothing is kept."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        heads, key_dim = key_states.shape[1], key_states.shape[3]
        self.kv_shape = LayerShape(heads, key_dim, value_states.shape[-1], key_states.dtype, key_states.device)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def slot_cache(kv: KvCache | PathCache) -> Any:
    """A transformers Cache whose layers write to `kv`."""
    return Cache(layers=[SlotLayer(kv, layer) for layer in range(len(kv.shapes))])


def shape_cache(num_layers: int) -> Any:
    """A transformers Cache that remembers shapes and keeps nothing."""
    return Cache(layers=[ShapeLayer() for _ in range(num_layers)])
