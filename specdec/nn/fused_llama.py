"""A LLaMA layer for inference, in a third of the operations of its modules; its matrices are theirs, but for their layout.

One token through a small model costs more in dispatch than in arithmetic. Here the projections that read the same input are
one matrix product, the rotation of queries and keys is one, and heads that share keys are laid side by side as further nodes,
so that keys and values are never copied.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specdec.nn.grouped_query_attention import grouped_attention
from specdec.nn.packed_linear import Linear, joined

FEW_ROWS = 4
"""Up to so many rows, a layer norm of twice the width takes a CPU less time than the operations of a root-mean-square norm."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedNorm:
    """A root-mean-square norm, in float32 or wider.

    For a few rows on a CPU it is the layer norm of the states beside their negatives, whose mean is 0, so that their variance
    is the mean square: three operations in place of nine.
    weight: [size]. twice: the weight end to end with itself; None elsewhere than on a CPU.
    """

    weight: Tensor
    twice: Tensor | None
    eps: float

    def __call__(self, states: Tensor) -> Tensor:
        """[..., size] for states of that shape."""
        size = self.weight.shape[0]
        if self.twice is None or states.numel() > FEW_ROWS * size:
            return functional.rms_norm(states, self.weight.shape, self.weight, self.eps)
        both = torch.cat((states, -states), dim=-1)
        return torch.layer_norm(both, self.twice.shape, self.twice, None, self.eps).narrow(-1, 0, size)


class Projected(NamedTuple):
    """What attention compares and mixes, each [rows, heads, nodes, dim]; keys and values have the fewer heads."""

    query: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class FusedAttention:
    """Grouped-query attention with rotary positions. The cache lies between its two halves."""

    queries_keys_values: Linear
    after: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scaling: float

    def project(self, states: Tensor, cos: Tensor, sin: Tensor) -> Projected:
        """Of states [rows, nodes, input]; queries and keys are rotated.

        cos, sin: [rows or 1, nodes, 1, dim], the sines signed as in `signed`.
        """
        rows, nodes, _ = states.shape
        mapped = self.queries_keys_values(states).view(rows, nodes, -1, self.head_dim)
        both, values = mapped.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), 2)
        turned = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin)
        query, keys = turned.split_with_sizes((self.heads, self.kv_heads), 2)
        return Projected(query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))

    def mix(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """[rows, nodes, hidden] of a query and the keys and values before it; bias as in `grouped_attention`."""
        mixed = grouped_attention(query, keys, values, bias, self.scaling)
        rows, _, nodes, _ = mixed.shape
        return self.after(mixed.transpose(1, 2).reshape(rows, nodes, -1))


@dataclass(frozen=True, slots=True, eq=False)
class FusedMlp:
    """down(silu(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear

    def __call__(self, states: Tensor) -> Tensor:
        """[rows, nodes, hidden] of states of that shape."""
        gate, up = self.gate_up(states).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


def fused_norm(weight: Tensor, eps: float) -> FusedNorm:
    """From the weight [size]."""
    own = weight.detach()
    return FusedNorm(own, torch.cat((own, own)) if own.device.type == "cpu" else None, eps)


def fused_attention(module: Any, heads: int, kv_heads: int, head_dim: int, scaling: float) -> FusedAttention:
    """From a module with maps `q_proj`, `k_proj`, `v_proj` and `o_proj`, whose weights become views of the joined one."""
    qkv = joined(module.q_proj, module.k_proj, module.v_proj)
    return FusedAttention(qkv, joined(module.o_proj), heads, kv_heads, head_dim, scaling)


def fused_mlp(module: Any) -> FusedMlp:
    """From a module with maps `gate_proj`, `up_proj` and `down_proj`, whose weights become views of the joined one."""
    return FusedMlp(joined(module.gate_proj, module.up_proj), joined(module.down_proj))


def signed(sin: Tensor) -> Tensor:
    """The sines [..., dim] by which halves that have changed places are multiplied: the first half turns negative."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
