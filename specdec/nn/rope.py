"""Rotary positions of draft heads, with the scalings that published heads use."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specdec.errors import CheckpointError

SCALINGS = ("default", "linear", "llama3")


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Tensor:
    """[head_dim / 2] float32. Raises CheckpointError for a scaling that is not known, or whose settings are no numbers."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    settings: Mapping[str, Any] = scaling or {}
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind == "linear":
        frequencies = frequencies / _number(settings, "factor")
    elif kind == "llama3":
        frequencies = _llama3(frequencies, settings)
    elif kind != "default":
        raise CheckpointError(f"rope scaling '{kind}' is not known; {', '.join(SCALINGS)} would work")
    return frequencies.to(torch.float32)


def rotate(states: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """The states [rows, heads, nodes, dim] turned by positions [rows or 1, nodes]; halves paired as in LLaMA."""
    angles = positions[:, None, :, None].to(torch.float32) * frequencies
    cosine, sine = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _number(settings: Mapping[str, Any], name: str) -> float:
    """A setting of a scaling. Raises CheckpointError unless it is a finite number above 0."""
    value = settings.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        got = "it is missing" if value is None else f"got {value!r}"
        raise CheckpointError(f"rope_scaling.{name}: {got}, expected a finite number above 0")
    return float(value)


def _llama3(frequencies: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (_number(settings, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise CheckpointError(f"rope_scaling: low_freq_factor {low} is not below high_freq_factor {high}")
    turns = frequencies * _number(settings, "original_max_position_embeddings") / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)
