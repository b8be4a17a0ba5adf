"""Bootstrap intervals; the resamples are a function of the sample's size, so that a report always says the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.sampling.keyed_noise import mix, uniforms

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the ends of its bootstrap 95 % interval; no ends for a sample of one."""

    value: float
    low: float | None = None
    high: float | None = None


def median_interval(values: Sequence[float]) -> Estimate:
    """The median of `values` (at least one). *Source: percentile bootstrap, Efron 1979.*"""
    sample = torch.tensor(values, dtype=torch.float64)
    return _estimate(len(values), lambda rows: _median(sample[rows]))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Sum of `above` over sum of `below`; pairs are drawn together."""
    pairs = torch.tensor([above, below], dtype=torch.float64)
    return _estimate(len(above), lambda rows: pairs[0][rows].sum(-1) / pairs[1][rows].sum(-1))


def _estimate(size: int, statistic: Callable[[Tensor], Tensor]) -> Estimate:
    value = float(statistic(torch.arange(size)[None])[0])
    if size < 2:
        return Estimate(value)
    noise = uniforms(mix(size, 97), torch.arange(RESAMPLES * size)).reshape(RESAMPLES, size)
    drawn = statistic((noise * size).to(torch.int64))
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(value, low, high)


def _median(values: Tensor) -> Tensor:
    ordered, count = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
