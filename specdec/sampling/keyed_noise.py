"""Numbers that look random and are a function of their keys: hashes, uniforms and Gumbel noise."""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mix(*words: int) -> int:
    """A 64-bit hash of integers (the finaliser of SplitMix64 after each word)."""
    state = 0
    for word in words:
        state = (state + _GOLDEN + (word & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * _MIX_1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX_2) & _MASK
        state ^= state >> 31
    return state


def signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _shift(words: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def uniforms(key: int, ids: Tensor) -> Tensor:
    """[k] float64 in (0, 1), a function of (key, id) alone: a 52-bit hash in wrapping int64, the same on every device.

    A 53rd bit would round the largest value to 1, whose Gumbel noise is infinite.
    """
    words = ids.to(torch.int64) * signed(_GOLDEN) + signed(key)
    words = (words ^ _shift(words, 30)) * signed(_MIX_1)
    words = (words ^ _shift(words, 27)) * signed(_MIX_2)
    words = words ^ _shift(words, 31)
    return (_shift(words, 12).to(torch.float64) + 0.5) * 2.0**-52


def gumbels(seed: int, position: int, ids: Tensor) -> Tensor:
    """[k] float64 standard Gumbel noise keyed by (seed, position, id).

    Source: arXiv 2408.07978 (drafter-invariant speculation by shared noise); Gumbel-max trick.
    """
    return -torch.log(-torch.log(uniforms(mix(seed, position), ids)))


def request_key(spec_seed: int, request_index: int) -> int:
    """The key of a request that brings no seed of its own: a seed itself, in [0, 2**63)."""
    return mix(spec_seed, request_index, 5) >> 1
