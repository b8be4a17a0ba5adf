"""A head as drafting runs it: what its modules compute, but for rounding, in half of the operations."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specdec.fused_layer import FusedNorm, fused_attention, fused_mlp, fused_norm, signed
from specdec.grouped_attention import laid_side_by_side
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.layer import CacheUpdate, RmsNorm
from specdec.packing import joined

FEW_NODES = 32
"""Up to so many nodes, copies of the mask cost less than copies of keys and values."""


class FusedHead:
    """Called as `module` is, which is not trained any more: its weights become views of joined ones. Without gradients."""

    def __init__(self, module: EagleHead | EagleHead3, layer: Any) -> None:
        self.module = module
        self.config = config = module.config
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._fc = joined(module.fc)
        self._attention = fused_attention(
            layer.self_attn, config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim**-0.5
        )
        self._frequencies: Tensor = layer.self_attn.frequencies
        self._before_mlp = _norm(layer.post_attention_layernorm)
        self._mlp = fused_mlp(layer.mlp)
        self._turns = torch.empty(0)

    def entry(self, features: Tensor) -> Tensor:
        """`hidden` of the first step, as the module's."""
        raise NotImplementedError

    def readout(self, hidden: Tensor) -> Tensor:
        """What the LM head reads."""
        raise NotImplementedError

    def __call__(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, *, mask: Tensor, update: CacheUpdate) -> Tensor:
        """The next hidden state [rows, nodes, hidden]; arguments as the module's. No position lies beyond the mask's slots."""
        residual, read = self._inputs(embeddings, hidden)
        query, keys, values = self._attention.project(read, *self._rotations(positions, mask))
        keys, values = update(keys, values)
        bias = laid_side_by_side(mask, self._groups) if hidden.shape[1] <= FEW_NODES else mask
        states = residual + self._attention.mix(query, keys, values, bias)
        return states + self._mlp(self._before_mlp(states))

    def _inputs(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual, and what attention reads."""
        raise NotImplementedError

    def _rotations(self, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """[rows or 1, nodes, 1, dim] cosines and signed sines, looked up in a table of as many positions as there are slots."""
        slots = mask.shape[-1]
        if len(self._turns) < slots:
            places = torch.arange(2 * slots, dtype=torch.float32, device=mask.device)
            angles = (places[:, None] * self._frequencies).repeat(1, 2)
            self._turns = torch.cat((angles.cos(), signed(angles.sin())), dim=-1).to(mask.dtype)
        cos, sin = functional.embedding(positions, self._turns).unsqueeze(2).chunk(2, dim=-1)
        return cos, sin


class _Fused(FusedHead):
    """EAGLE-1/2: attention reads the residual itself."""

    def entry(self, features: Tensor) -> Tensor:
        return features

    def readout(self, hidden: Tensor) -> Tensor:
        return hidden

    def _inputs(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        config, parts = self.config, []
        if config.inputs.has_token:
            parts.append(embeddings * config.embedding_scale)
        if config.inputs.has_feature:
            parts.append(hidden * config.feature_scale)
        states = self._fc(torch.cat(parts, dim=-1))
        return states, states


class _Fused3(FusedHead):
    """EAGLE-3: attention reads the normed embedding and the normed hidden state side by side."""

    def __init__(self, module: EagleHead3) -> None:
        super().__init__(module, module.midlayer)
        layer = module.midlayer
        self._before_readout = _norm(module.norm)
        self._of_token, self._of_hidden = _norm(layer.input_layernorm), _norm(layer.hidden_norm)
        self._residual_is_normed = layer.norm_before_residual

    def entry(self, features: Tensor) -> Tensor:
        flat = features.flatten(2) if features.dim() == 4 else features
        return self._fc(flat * self.config.feature_scale)

    def readout(self, hidden: Tensor) -> Tensor:
        return self._before_readout(hidden)

    def _inputs(self, embeddings: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._of_hidden(hidden)
        token = self._of_token(embeddings * self.config.embedding_scale)
        return normed if self._residual_is_normed else hidden, torch.cat((token, normed), dim=-1)


def fused_head(module: EagleHead | EagleHead3) -> FusedHead:
    """The module as drafting runs it."""
    return _Fused3(module) if isinstance(module, EagleHead3) else _Fused(module, module.layers[0])


def _norm(module: RmsNorm) -> FusedNorm:
    return fused_norm(module.weight, module.eps)
