"""Attention of heads that share keys and values, without copies of these where nodes are few."""

import torch
from torch import Tensor
from torch.nn import functional

FEW_NODES = 64
"""Up to so many nodes, copies of the mask cost less than copies of keys and values."""


def laid_side_by_side(bias: Tensor, groups: int) -> Tensor:
    """The additive mask [rows or 1, 1, nodes, slots] for `groups` heads a key: what makes `grouped_attention` copy no keys.

    Where nodes are many, the mask as it is.
    """
    return bias if groups == 1 or bias.shape[2] > FEW_NODES else torch.cat((bias,) * groups, dim=2)


def grouped_attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float | None = None) -> Tensor:
    """[rows, heads, nodes, dim], from a query of that shape and keys and values [rows, kv heads, slots, dim].

    bias: additive mask; None: causal among the nodes. With one that is laid side by side, heads that share keys become further
    nodes: the same numbers, and on a CPU in bfloat16 attention for a lone node takes a fifth of the time.
    """
    rows, heads, nodes, _ = query.shape
    groups = heads // keys.shape[1]
    if groups > 1 and bias is not None and bias.shape[2] == groups * nodes:
        folded = query.reshape(rows, keys.shape[1], groups * nodes, -1)
        return functional.scaled_dot_product_attention(folded, keys, values, attn_mask=bias, scale=scale).view(query.shape)
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, is_causal=bias is None, scale=scale)
