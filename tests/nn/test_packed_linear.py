"""Packed linear maps: the plain ones, faster."""

import pytest
import torch
from torch import nn

from specdec.nn.packed_linear import can_pack, linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 5, 16, 200])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_plain_map(dtype, rows, with_bias):
    torch.manual_seed(0)
    weight, bias = torch.randn(33, 70, dtype=dtype), torch.randn(33, dtype=dtype) if with_bias else None
    states = torch.randn(2, rows, 70, dtype=dtype)
    tolerance = 1e-1 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(
        linear(weight, bias)(states), nn.functional.linear(states, weight, bias), rtol=tolerance, atol=tolerance
    )


def test_a_dtype_without_a_layout_stays_plain():
    assert not can_pack(torch.zeros(4, 4, dtype=torch.float64))
    assert linear(torch.zeros(4, 4, dtype=torch.float64)).packed is None
