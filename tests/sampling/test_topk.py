import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import NumericsError
from specdec.interfaces.proposals import Candidates, Distributions
from specdec.sampling.distribution import draft_probs
from specdec.sampling.params import TruncationParams
from specdec.sampling.topk import BLOCK, best_tokens, top_columns


def naive(row, count, target_ids=None):
    """Sorting the whole row."""
    ids = range(len(row)) if target_ids is None else target_ids.tolist()
    row = row.double()
    mass = torch.logsumexp(row, -1).item()
    ranked = sorted(((-v, t) for v, t in zip(row.tolist(), ids, strict=True) if v > -math.inf))[:count]
    return [t for _, t in ranked], [-v - mass for v, _ in ranked]


@pytest.mark.parametrize("columns", [5, 255, 256, 5000, BLOCK * 64])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["smooth", "tied", "flat", "holes"])
def test_the_best_tokens_are_those_of_a_full_sort_with_ties_to_the_lower_id(columns, count, dtype, kind):
    torch.manual_seed(columns + count)
    logits = torch.randn(3, columns).mul(5)
    if kind == "tied":
        logits = logits.round()
    if kind == "flat":
        logits = torch.zeros(3, columns)
    if kind == "holes":
        logits[torch.rand(3, columns) < 0.95] = -math.inf
        logits[0] = -math.inf
        logits[0, columns // 2] = 1.0
    tokens, scores = Distributions(logits.to(dtype)).top(count)
    for row, found, found_scores in zip(logits.to(dtype), tokens, scores, strict=True):
        expected, expected_scores = naive(row, count)
        assert found == expected
        assert found_scores == pytest.approx(expected_scores, abs=1e-4)
        assert all(score <= 0 for score in found_scores)


def test_ties_follow_target_ids_where_columns_are_mapped():
    target_ids = torch.tensor([30, 10, 20, 5])
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 2.0, 2.0, 2.0]])
    assert Distributions(logits, target_ids).top(2)[0] == [[10, 20], [5, 10]]
    assert [[t for t, _ in row] for row in best_tokens(logits, 1, target_ids)] == [[10], [5]]


@given(st.integers(1, 12), st.integers(1, 3000), st.integers(0, 1000))
@settings(max_examples=50)
def test_the_blocks_hold_the_top_values(count, columns, seed):
    logits = torch.randn(2, columns, generator=torch.Generator().manual_seed(seed))
    values, found = top_columns(logits, count)
    assert torch.equal(values, logits.topk(min(count, columns)).values)
    assert torch.equal(logits.gather(1, found), values)


def test_rows_without_a_possible_token_and_questions_for_none_are_empty():
    logits = torch.full((2, 300), -math.inf)
    logits[1, 4] = 0.0
    assert Distributions(logits).top(3) == ([[], [4]], [[], [0.0]])
    assert Distributions(logits).top(0) == ([[], []], [[], []])
    assert Distributions(torch.empty(0, 300)).top(3) == ([], [])


def test_candidates_are_given_once_each_and_only_if_possible():
    answer = Candidates(((4, 7, 4, 9),), ((-0.1, -math.inf, -0.2, -0.3),))
    assert answer.top(2) == ([[4, 9]], [[-0.1, -0.3]])


def test_one_row_for_several_nodes_is_ranked_and_warped_as_that_row_for_each_of_them():
    row, ids = torch.randn(1, 600, generator=torch.Generator().manual_seed(0)), torch.arange(600) * 2
    alike, copies = row.expand(4, -1), row.repeat(4, 1)
    assert best_tokens(alike, 5, ids) == best_tokens(copies, 5, ids)
    q = draft_probs(alike, ids, 1300, TruncationParams(top_k=9))
    assert torch.equal(q, draft_probs(copies, ids, 1300, TruncationParams(top_k=9)))
    q[0] = 0.0
    assert bool(q[1].any())
    with pytest.raises(NumericsError):
        draft_probs(torch.full((1, 3), math.nan).expand(2, -1), None, 3, TruncationParams())
