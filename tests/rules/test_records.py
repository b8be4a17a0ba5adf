"""Counts and rates are those of what was emitted, and a drafter that does not pay is left alone."""

from statistics import mean

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.ngram import NgramDrafter, NgramOptions


def test_tau_is_of_one_answer_and_the_pooled_one_comes_from_its_records(compose, counter, chain_of):
    """One answer of 2 steps that emit 2 tokens each, one of a single step that emits 5."""
    short = compose(counter(), chain_of(1), "oracle").generate([[0]], max_new_tokens=5)[0]
    long = compose(counter(), chain_of(4), "oracle").generate([[0]], max_new_tokens=6)[0]
    assert [r.committed for r in short.records] == [2, 2]
    assert [r.committed for r in long.records] == [5]
    assert (short.tau, long.tau) == (2.0, 5.0)
    steps = [*short.records, *long.records]
    assert sum(r.committed for r in steps) / len(steps) == 3.0
    assert mean([short.tau, long.tau]) == 3.5
    assert sum(r.accepted for r in steps) / len(steps) == 2.0


@pytest.mark.parametrize("drafter", ["oracle", "anti", "mixed"])
def test_along_a_chain_no_depth_is_accepted_more_often_than_the_one_above(compose, table, chain_of, drafter):
    [answer] = compose(table(8, seed=1), chain_of(5), drafter).generate([[1]], max_new_tokens=60)
    accepted = [sum(r.accepted > depth for r in answer.records) for depth in range(5)]
    assert accepted == sorted(accepted, reverse=True)
    tested = [sum(r.tested > depth for r in answer.records) for depth in range(5)]
    assert answer.alpha_at() == [a / t for a, t in zip(accepted, tested, strict=True) if t]


def never_twice(vocab):
    """A text in which no pair of tokens occurs twice, so that what followed a token before never follows it again."""
    followers = {token: [(token + step) % vocab for step in range(vocab)] for token in range(vocab)}
    text = [0]
    while followers[text[-1]]:
        text.append(followers[text[-1]].pop())
    return text


def test_a_drafter_that_is_always_wrong_soon_stops_and_costs_no_forward_more(compose, table, ranking):
    text = never_twice(20)
    target = table(20, rows={"*": [1 / 20] * 20})

    def script(input_ids, scores):
        forced = torch.full_like(scores, float("-inf"))
        forced[:, text[input_ids.shape[1]]] = 0.0
        return forced

    request = Request(text[:10], max_new_tokens=len(text) - 10, processors=[script])
    [answer] = compose(target, ranking, NgramDrafter(NgramOptions())).generate([request])
    assert answer.tokens == tuple(text[10:])
    drafting = [n for n, record in enumerate(answer.records) if record.drafted]
    assert len(drafting) > 0
    assert max(drafting) < 200
    assert len(answer.records) == len(text) - 11 > 300
    stubborn = NgramDrafter(NgramOptions(min_confidence=0.0, adaptive=False))
    [never] = compose(target, ranking, stubborn).generate([request])
    assert max(n for n, record in enumerate(never.records) if record.drafted) > 300
