"""A head as drafting runs it: what its modules compute, but for rounding, in half of the operations."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.layers import CacheUpdate, RmsNorm
from specdec.nn.fused_llama import FusedNorm, fused_attention, fused_mlp, fused_norm, signed
from specdec.nn.grouped_query_attention import laid_side_by_side
from specdec.nn.packed_linear import Linear, joined


class _Entered(NamedTuple):
    """What the residual is before attention, and what attention reads."""

    residual: Tensor
    read: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Eagle:
    """How an EAGLE-1/2 head takes its inputs, and gives its outputs: as they are."""

    config: HeadConfig
    fc: Linear

    def input_projection(self, features: Tensor) -> Tensor:
        return features

    def enter(self, embeddings: Tensor, hidden: Tensor) -> _Entered:
        parts = []
        if self.config.inputs.has_token:
            parts.append(embeddings * self.config.embedding_scale)
        if self.config.inputs.has_feature:
            parts.append(hidden * self.config.feature_scale)
        states = self.fc(torch.cat(parts, dim=-1))
        return _Entered(states, states)

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        return hidden


@dataclass(frozen=True, slots=True, eq=False)
class _Eagle3:
    """How an EAGLE-3 head does: attention reads the normed embedding and the normed hidden state side by side."""

    config: HeadConfig
    fc: Linear
    of_token: FusedNorm
    of_hidden: FusedNorm
    norm: FusedNorm

    def input_projection(self, features: Tensor) -> Tensor:
        flat = features.flatten(2) if features.dim() == 4 else features
        return self.fc(flat * self.config.feature_scale)

    def enter(self, embeddings: Tensor, hidden: Tensor) -> _Entered:
        normed = self.of_hidden(hidden)
        read = torch.cat((self.of_token(embeddings * self.config.embedding_scale), normed), dim=-1)
        return _Entered(normed if self.config.norm_before_residual else hidden, read)

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


class FusedHead:
    """`module` for inference; one per module, whose matrices become views of joined ones. Without gradients.

    module: the head's own modules: the plain computation, which is not trained any more.
    """

    def __init__(self, module: EagleHead | EagleHead3) -> None:
        self.module = module
        self.config = config = module.config
        layer: Any = module.midlayer if isinstance(module, EagleHead3) else module.layers[0]
        self._ends = _ends(module)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._groups = heads // kv_heads
        self._attention = fused_attention(layer.self_attn, heads, kv_heads, config.head_dim, config.head_dim**-0.5)
        self._before_mlp = _norm(layer.post_attention_layernorm)
        self._mlp = fused_mlp(layer.mlp)
        self._frequencies: Tensor = layer.self_attn.frequencies
        self._rotations = torch.empty(0)

    def input_projection(self, features: Tensor) -> Tensor:
        """`hidden` of the first step, as the module's."""
        return self._ends.input_projection(features)

    def __call__(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, *, mask: Tensor, update: CacheUpdate) -> Tensor:
        """The next hidden state [rows, nodes, hidden]; arguments as the module's, the mask in the head's dtype.

        No position lies beyond the mask's slots.
        """
        residual, read = self._ends.enter(embeddings, hidden)
        cos, sin = self._turns(positions, mask.shape[-1])
        query, keys, values = self._attention.project(read, cos, sin)
        keys, values = update(keys, values)
        bias = laid_side_by_side(mask, self._groups)
        states = residual + self._attention.mix(query, keys, values, bias)
        return states + self._mlp(self._before_mlp(states))

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        """What the LM head reads."""
        return self._ends.lm_head_states(hidden)

    def _turns(self, positions: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """[rows or 1, nodes, 1, dim] cosines and signed sines, looked up in a table of at least as many positions as slots."""
        if len(self._rotations) < slots:
            weight = self._attention.queries_keys_values.weight
            places = torch.arange(2 * slots, dtype=torch.float32, device=weight.device)
            angles = (places[:, None] * self._frequencies).repeat(1, 2)
            self._rotations = torch.cat((angles.cos(), signed(angles.sin())), dim=-1).to(weight.dtype)
        cos, sin = functional.embedding(positions, self._rotations).unsqueeze(2).chunk(2, dim=-1)
        return cos, sin


def _ends(module: EagleHead | EagleHead3) -> _Eagle | _Eagle3:
    config, fc = module.config, joined(module.fc)
    if not isinstance(module, EagleHead3):
        return _Eagle(config, fc)
    layer = module.midlayer
    return _Eagle3(config, fc, _norm(layer.input_layernorm), _norm(layer.hidden_norm), _norm(module.norm))


def _norm(module: RmsNorm) -> FusedNorm:
    return fused_norm(module.weight, module.eps)
