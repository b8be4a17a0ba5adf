import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import NumericsError, PluginError
from specdec.interfaces.declarations import Guarantee
from specdec.interfaces.proposals import Candidates, Distributions, top_of_each
from specdec.interfaces.results import Generation, HiddenStates, StepRecord

scores = st.integers(-3, 3).map(float) | st.just(float("-inf"))


@given(rows=st.lists(st.lists(scores, min_size=6, max_size=6), min_size=1, max_size=3), count=st.integers(1, 8))
def test_the_top_tokens_are_those_of_a_full_sort_with_ties_to_the_lower_id(rows, count):
    target_ids = [7, 3, 9, 1, 0, 4]
    for ids in (None, torch.tensor(target_ids)):
        names = list(range(6)) if ids is None else target_ids
        logits = torch.tensor([[0.0, *row[1:]] for row in rows])
        tokens, found = Distributions(logits, ids).top(count)
        for row, row_tokens, row_scores in zip(logits, tokens, found, strict=True):
            possible = [(-float(x), name) for x, name in zip(row, names, strict=True) if x > float("-inf")]
            assert row_tokens == [name for _, name in sorted(possible)[:count]]
            expected = [-minus - float(row.logsumexp(-1)) for minus, _ in sorted(possible)[:count]]
            assert row_scores == pytest.approx(expected, abs=1e-5)


def test_candidates_give_their_first_tokens():
    given_by = Candidates(((5, 2, 8), (1,)), ((-0.1, -0.5, -2.0), (-1.0,)))
    assert given_by.top(2) == ([[5, 2], [1]], [[-0.1, -0.5], [-1.0]])


def test_rows_of_hidden_states_are_taken_in_order():
    states = HiddenStates(last=torch.arange(6).reshape(3, 2), layers=torch.arange(12).reshape(3, 2, 2))
    taken = states.rows([2, 0])
    assert taken.last.tolist() == [[4, 5], [0, 1]]
    assert taken.layers.shape == (2, 2, 2)
    assert HiddenStates().rows([0]).last is None


def record(drafted, depth, tested, accepted, committed) -> StepRecord:
    emitted = tuple(range(committed))
    return StepRecord(
        drafted=drafted,
        depth=depth,
        tested=tested,
        accepted=accepted,
        committed=committed,
        emitted=emitted,
        sources=(-1,) * committed,
        batch_size=1,
        seconds={},
    )


def generation(records) -> Generation:
    return Generation(
        prompt_tokens=(1,),
        tokens=(1,) * 10,
        text=None,
        finish_reason="length",
        stopped_by=None,
        seed=0,
        sample_index=0,
        records=tuple(records),
        logprobs=None,
        guarantee=Guarantee.LOSSLESS,
        seconds=2.0,
        prefill_seconds=1.0,
    )


def test_tau_counts_committed_tokens_per_step():
    done = generation([record(4, 3, 3, 2, 3), record(4, 3, 1, 0, 1)])
    assert done.tau == 2.0
    assert done.draft_acceptance_rate == 2 / 8
    assert done.tokens_per_second == 5.0
    assert done.alpha_at() == [1 / 2, 1.0, 0.0]


def test_rates_of_nothing_are_nan():
    assert math.isnan(generation([]).tau)
    assert math.isnan(generation([record(0, 0, 0, 0, 1)]).draft_acceptance_rate)
    assert generation([]).alpha_at() == []


def test_candidates_need_a_score_for_every_token():
    with pytest.raises(PluginError, match="score for every token"):
        Candidates(((1, 2),), ((-0.1,),))


@pytest.mark.parametrize("count", [1, 4, 40])
def test_answers_that_are_ranked_together_are_ranked_as_if_alone(count):
    torch.manual_seed(0)
    ids = torch.randperm(500)[:300]
    logits = [torch.randn(rows, 300).bfloat16() for rows in (2, 1, 3)]
    given = [Distributions(some, ids, source=n) for n, some in enumerate(logits)]
    assert top_of_each(given, count) == [answer.top(count) for answer in given]
    other = [*given, Distributions(logits[0])]
    assert top_of_each(other, count) == [answer.top(count) for answer in other]
    mixed = [given[0], Candidates(((1, 2),), ((-0.1, -0.2),))]
    assert top_of_each(mixed, count) == [answer.top(count) for answer in mixed]
    assert top_of_each([], count) == []


def test_nan_in_one_of_the_answers_that_are_ranked_together_is_said_to_be_its_makers():
    good, bad = torch.zeros(1, 9), torch.full((1, 9), math.nan)
    with pytest.raises(NumericsError, match="the second gave it"):
        top_of_each([Distributions(good, made_by="the first"), Distributions(bad, made_by="the second")], 2)
