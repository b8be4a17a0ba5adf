"""The forward of a LLaMA-like transformers model in a third of the operations, on the model's own weights.

One token through a small model costs more in dispatch than in arithmetic. Here the projections of a layer that read the same
input are one matrix product, the rotation of queries and keys is one, and heads that share keys are laid side by side as
further nodes, so that keys and values are never copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.contracts import Features
from specdec.grouped_attention import grouped_attention, laid_side_by_side
from specdec.packing import Linear, joined, linear
from specdec.records import HiddenStates
from specdec.targets.capability import text_config

FEW_NODES = 64
"""Up to so many nodes, copies of the mask cost less than copies of keys and values."""

LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    """A root-mean-square norm in float32."""

    weight: Tensor
    eps: float

    def __call__(self, states: Tensor) -> Tensor:
        if states.dtype == torch.float32:
            return functional.rms_norm(states, self.weight.shape, self.weight, self.eps)
        return self.weight * functional.rms_norm(states.float(), self.weight.shape, None, self.eps).to(states.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The weights of one decoder layer."""

    before_attention: _Norm
    queries_keys_values: Linear
    after_attention: Linear
    before_mlp: _Norm
    gate_up: Linear
    down: Linear


class FusedForward:
    """Runs the decoder layers of `model` on [rows, nodes] ids with explicit positions, mask and cache.

    Its weights are the model's: the modules that were joined become views of the joined tensors, so that nothing is held twice.
    """

    def __init__(self, model: Any, layers: Sequence[nn.Module], decoder: nn.Module) -> None:
        config = text_config(model.config)
        first: Any = layers[0]
        self.head_dim: int = first.self_attn.head_dim
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.scaling: float = first.self_attn.scaling
        self._embed = model.get_input_embeddings()
        self.device: torch.device = self._embed.weight.device
        head: Any = model.get_output_embeddings()
        self._head = linear(head.weight, head.bias)
        self._layers = [_layer(layer, config.rms_norm_eps) for layer in layers]
        norm: Any = decoder.norm
        self._norm = _Norm(norm.weight, config.rms_norm_eps)
        self._rotary: Any = decoder.rotary_emb

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any, features: Features
    ) -> tuple[Tensor, HiddenStates]:
        """Post-norm states [rows, nodes, hidden], and the hidden states that were asked for."""
        few = ids.shape[1] <= FEW_NODES
        bias = laid_side_by_side(mask, self.heads // self.kv_heads) if few else mask
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
            states = states + self._attention(layer, index, states, cos, sin, bias, cache)
            gate, up = layer.gate_up(layer.before_mlp(states)).chunk(2, dim=-1)
            states = states + layer.down(functional.silu(gate) * up)
        inputs[len(self._layers)] = states
        return self._norm(states), torch.stack([inputs[layer] for layer in wanted], 2) if wanted else None

    def head(self, states: Tensor) -> Tensor:
        """Logits of post-norm states."""
        return self._head(states)

    def _attention(
        self, layer: _Layer, index: int, states: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, cache: Any
    ) -> Tensor:
        rows, nodes, _ = states.shape
        joined = layer.queries_keys_values(layer.before_attention(states)).view(rows, nodes, -1, self.head_dim)
        both, values = joined[:, :, : self.heads + self.kv_heads], joined[:, :, self.heads + self.kv_heads :]
        turned = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin)
        query, keys = turned[:, :, : self.heads].transpose(1, 2), turned[:, :, self.heads :].transpose(1, 2)
        keys, values = cache.update(keys, values.transpose(1, 2), index)
        mixed = grouped_attention(query, keys, values, bias, self.scaling)
        return layer.after_attention(mixed.transpose(1, 2).reshape(rows, nodes, -1))

    def _rotations(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, nodes, 1, dim] cosines, and sines with the sign that rotating halves gives them."""
        cos, sin = self._rotary(states, positions)
        half = self.head_dim // 2
        return cos[:, :, None], torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)[:, :, None]


def not_fusable_because(model: Any, layers: Sequence[nn.Module], decoder: nn.Module | None) -> str | None:
    """Why the model has another structure, or None. Numbers are compared elsewhere: this looks at modules only."""
    if getattr(model, "hf_device_map", None) is not None:
        return "it is spread over devices"
    if decoder is None or not hasattr(decoder, "norm") or not hasattr(decoder, "rotary_emb"):
        return "its decoder has no `norm` or no `rotary_emb`"
    for layer in layers:
        if set(dict(layer.named_children())) != LAYER_PARTS:
            return f"its layers are of {', '.join(sorted(dict(layer.named_children())))}"
        attention, mlp = _parts(layer)
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


def _parts(layer: Any) -> tuple[Any, Any]:
    """Attention and MLP."""
    return layer.self_attn, layer.mlp


def _layer(layer: Any, eps: float) -> _Layer:
    attention, mlp = _parts(layer)
    return _Layer(
        _Norm(layer.input_layernorm.weight, eps),
        joined(attention.q_proj, attention.k_proj, attention.v_proj),
        joined(attention.o_proj),
        _Norm(layer.post_attention_layernorm.weight, eps),
        joined(mlp.gate_proj, mlp.up_proj),
        joined(mlp.down_proj),
    )
