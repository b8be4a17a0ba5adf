"""The forward of a LLaMA-like transformers model in a third of the operations, on the model's own weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec.interfaces.declarations import Features
from specdec.interfaces.results import HiddenStates
from specdec.nn.fused_llama import FusedAttention, FusedMlp, FusedNorm, fused_attention, fused_mlp, fused_norm, signed
from specdec.nn.grouped_query_attention import laid_side_by_side
from specdec.nn.packed_linear import linear
from specdec.targets.capability import text_config


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The weights of one decoder layer."""

    before_attention: FusedNorm
    attention: FusedAttention
    before_mlp: FusedNorm
    mlp: FusedMlp


class FusedForward:
    """Runs the decoder layers of `model` on [rows, nodes] ids with explicit positions, mask and cache.

    Its matrices are the model's: modules that were joined become views of the joined tensors. Norms are read when it is built.
    """

    def __init__(self, model: Any, layers: Sequence[nn.Module], decoder: nn.Module) -> None:
        config = text_config(model.config)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self._embed = model.get_input_embeddings()
        self.device: torch.device = self._embed.weight.device
        head: Any = model.get_output_embeddings()
        self._head = linear(head.weight, head.bias)
        self._layers = [_layer(layer, config) for layer in layers]
        self._norm = _norm(decoder.norm)
        self._rotary: Any = decoder.rotary_emb

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any, features: Features
    ) -> tuple[Tensor, HiddenStates]:
        """Post-norm states [rows, nodes, hidden], and the hidden states that were asked for."""
        bias = laid_side_by_side(mask, self.heads // self.kv_heads)
        last, layered = self.decode(ids, positions, bias, cache, features.layers)
        return last, HiddenStates(last if features.last else None, layered)

    def decode(
        self, ids: Tensor, positions: Tensor, bias: Tensor, cache: Any, wanted: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Post-norm states, and the inputs [rows, nodes, wanted, hidden] of wanted layers; bias as attention reads it."""
        states = self._embed(ids)
        cos, sin = self._rotations(states, positions)
        inputs: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in wanted:
                inputs[index] = states
            query, keys, values = layer.attention.project(layer.before_attention(states), cos, sin)
            keys, values = cache.update(keys, values, index)
            states = states + layer.attention.mix(query, keys, values, bias)
            states = states + layer.mlp(layer.before_mlp(states))
        inputs[len(self._layers)] = states
        return self._norm(states), torch.stack([inputs[layer] for layer in wanted], 2) if wanted else None

    def head(self, states: Tensor) -> Tensor:
        """Logits of post-norm states."""
        return self._head(states)

    def _rotations(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, nodes, 1, dim] cosines, and sines with the sign that rotating halves gives them."""
        cos, sin = self._rotary(states, positions)
        return cos[:, :, None], signed(sin)[:, :, None]


def _layer(layer: Any, config: Any) -> _Layer:
    attention = layer.self_attn
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return _Layer(
        _norm(layer.input_layernorm),
        fused_attention(attention, heads, kv_heads, attention.head_dim, attention.scaling),
        _norm(layer.post_attention_layernorm),
        fused_mlp(layer.mlp),
    )


def _norm(module: Any) -> FusedNorm:
    return fused_norm(module.weight, module.variance_epsilon)
