"""Equal rows come out of attention with equal bits, whatever thread they fall to."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from specdec.targets.bitwise_attention import RowByRow

ROWS = 16


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def operands(dim, seed, dtype=torch.float32, slots=128):
    """Query, keys, values and mask of 16 equal rows, as `PathCache` and the models lay them out."""
    torch.manual_seed(seed)
    query, keys, values = (torch.randn(1, length, 3, dim).to(dtype) for length in (1, slots, slots))
    mask = torch.where(torch.arange(slots) < 100, 0.0, torch.finfo(dtype).min).to(dtype)
    laid = [part.repeat(ROWS, 1, 1, 1).transpose(1, 2) for part in (query, keys, values)]
    return *laid, mask.repeat(ROWS, 1, 1, 1)


def are_equal(rows):
    return all(torch.equal(row, rows[0]) for row in rows)


@pytest.mark.parametrize("dim", [64, 20, 7])
@pytest.mark.usefixtures("two_threads")
def test_equal_rows_stay_equal_in_attention_and_in_products(dim):
    for seed in range(4):
        query, keys, values, mask = operands(dim, seed)
        with RowByRow():
            attended = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            scores = query @ keys.transpose(2, 3)
            mixed = torch.matmul((scores + mask).softmax(-1), values)
            batched = torch.bmm(query[:, 0], keys[:, 0].transpose(1, 2))
        for rows in (attended, scores, mixed, batched):
            assert len(rows) == ROWS
            assert are_equal(rows)


@pytest.mark.usefixtures("two_threads")
def test_the_numbers_are_those_of_one_call_for_all_rows():
    torch.manual_seed(0)
    query, keys, values = torch.randn(ROWS, 3, 1, 8), torch.randn(ROWS, 3, 128, 8), torch.randn(ROWS, 3, 128, 8)
    mask = torch.zeros(1, 1, 1, 128).masked_fill(torch.arange(128) > 90, float("-inf"))
    with RowByRow():
        rowwise = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3)
        products = query @ keys.transpose(2, 3)
    torch.testing.assert_close(rowwise, scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3))
    torch.testing.assert_close(products, query @ keys.transpose(2, 3))


def test_products_without_rows_in_common_are_left_alone():
    with RowByRow():
        assert (torch.ones(3, 2) @ torch.ones(2, 5)).shape == (3, 5)
        assert (torch.ones(4, 3, 2) @ torch.ones(2, 5)).shape == (4, 3, 5)
        assert (torch.ones(4, 3, 2) @ torch.ones(1, 2, 5)).shape == (4, 3, 5)
        assert scaled_dot_product_attention(*torch.ones(3, 1, 2, 4, 8)).shape == (1, 2, 4, 8)
