"""The forward of a LLaMA-like transformers model in a third of the operations, on the model's own weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.interfaces.declarations import Features
from specdec.interfaces.results import HiddenStates
from specdec.nn.fused_llama import FusedAttention, FusedMlp, FusedNorm, fused_attention, fused_mlp, fused_norm, signed
from specdec.nn.grouped_query_attention import laid_side_by_side
from specdec.nn.packed_linear import linear
from specdec.targets.capability import text_config

LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


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
        norm: Any = decoder.norm
        self._norm = fused_norm(norm.weight, config.rms_norm_eps)
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


def not_fusable_because(model: Any, layers: Sequence[nn.Module], decoder: nn.Module | None) -> str | None:
    """Why the model has another structure, or None. Numbers are compared elsewhere: this looks at modules only."""
    if getattr(model, "hf_device_map", None) is not None:
        return "it is spread over devices"
    if decoder is None or not hasattr(decoder, "norm") or not hasattr(decoder, "rotary_emb"):
        return "its decoder has no `norm` or no `rotary_emb`"
    for layer in layers:
        if set(dict(layer.named_children())) != LAYER_PARTS:
            return f"its layers are of {', '.join(sorted(dict(layer.named_children())))}"
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        if set(dict(attention.named_children())) != ATTENTION_PARTS or set(dict(mlp.named_children())) != MLP_PARTS:
            return "its attention or its MLP has other parts"
        linear = [getattr(attention, name) for name in ATTENTION_PARTS] + [
            getattr(mlp, name) for name in MLP_PARTS - {"act_fn"}
        ]
        if any(type(module) is not nn.Linear for module in linear):
            return "its projections are no plain linear maps"
        if not torch.equal(mlp.act_fn(_probe(linear[0])), functional.silu(_probe(linear[0]))):
            return "its activation is not SiLU"
    return None


def _probe(module: nn.Linear) -> Tensor:
    return torch.linspace(-3, 3, 64, dtype=module.weight.dtype, device=module.weight.device)


def _layer(layer: Any, config: Any) -> _Layer:
    attention, eps = layer.self_attn, config.rms_norm_eps
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return _Layer(
        fused_norm(layer.input_layernorm.weight, eps),
        fused_attention(attention, heads, kv_heads, attention.head_dim, attention.scaling),
        fused_norm(layer.post_attention_layernorm.weight, eps),
        fused_mlp(layer.mlp),
    )
