"""The parts of a fused layer, against the formulas that they stand for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.nn.fused_llama import FEW_ROWS, fused_norm

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}


def rms_norm(states, weight, eps):
    wide = states.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@given(
    size=st.integers(1, 70),
    rows=st.integers(1, FEW_ROWS + 2),
    scale=st.sampled_from([1e-4, 1e-2, 1.0, 300.0]),
    eps=st.sampled_from([1e-6, 1e-5, 1e-2]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    seed=st.integers(0, 99),
)
def test_the_norm_is_the_root_mean_square_norm(size, rows, scale, eps, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    states = (torch.randn(rows, 1, size, generator=generator) * scale + scale).to(dtype)
    weight = (torch.rand(size, generator=generator) + 0.5).to(dtype)
    given_norm = fused_norm(weight, eps)(states)
    assert given_norm.dtype == dtype
    torch.testing.assert_close(given_norm.double(), rms_norm(states, weight, eps), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_states_of_zeros_stay_zeros(dtype):
    assert torch.equal(
        fused_norm(torch.ones(4, dtype=dtype), 1e-6)(torch.zeros(1, 2, 4, dtype=dtype)), torch.zeros(1, 2, 4, dtype=dtype)
    )
