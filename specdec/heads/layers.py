"""The parts of one LLaMA decoder layer: attention over given keys and values, and SwiGLU."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.heads.config import LayerConfig
from specdec.nn.grouped_query_attention import grouped_attention
from specdec.nn.rope import inverse_frequencies, rotate

CacheUpdate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes the new keys and values [rows, kv heads, nodes, dim], rotated; gives all that may be attended to, in slot order."""


class RmsNorm(nn.Module):
    """Root-mean-square norm, in float32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states if states.dtype == torch.float64 else states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(self.weight.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. input_size: width of what q, k and v read (2H in EAGLE-3)."""

    def __init__(self, config: LayerConfig, input_size: int) -> None:
        super().__init__()
        self.config = config
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(input_size, self.heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def forward(self, states: Tensor, positions: Tensor, mask: Tensor | None, update: CacheUpdate | None) -> Tensor:
        """States [rows, nodes, input]; mask additive [rows or 1, 1, nodes, slots], or None: causal among the nodes."""
        rows, nodes, _ = states.shape
        both = self._split(torch.cat((self.q_proj(states), self.k_proj(states)), dim=-1))
        turned = rotate(both, positions, self.frequencies)
        query, keys = turned[:, : self.heads], turned[:, self.heads :]
        values = self._split(self.v_proj(states))
        if update is not None:
            keys, values = update(keys, values)
        mixed = grouped_attention(query, keys, values, None if mask is None else mask.to(query.dtype))
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, nodes, -1))
        return output

    def _split(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], -1, self.head_dim).transpose(1, 2)


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return output
