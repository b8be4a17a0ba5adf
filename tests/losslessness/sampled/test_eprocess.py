import itertools
import math

import numpy as np
import pytest

from specdec.losslessness.sampled.eprocess import STAKES, EProcess

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.3, 0.2, 0.5])
RATIOS = np.stack([Q / P, np.ones(3)], 1)


def plain_wealth(tokens):
    """The mean over stakes and alternatives, one product at a time."""
    return np.mean([[math.prod(1 - s + s * RATIOS[t, a] for t in tokens) for s in STAKES] for a in (0, 1)])


def test_expected_wealth_under_p_is_one_by_enumeration():
    total = 0.0
    for tokens in itertools.product(range(3), repeat=4):
        total += float(np.prod(P[list(tokens)])) * plain_wealth(tokens)
    assert total == pytest.approx(1.0)


def test_wealth_is_the_naive_product_whatever_the_batches():
    tokens = [2, 2, 0, 1, 2, 2, 1, 2]
    process = EProcess(("q", "none"))
    for part in (tokens[:3], tokens[3:4], [], tokens[4:]):
        process.add(RATIOS[part])
    best = max(plain_wealth(tokens[: n + 1]) for n in range(len(tokens)))
    assert process.best == pytest.approx(max(0.0, math.log(best)))
    assert process.p_value == pytest.approx(min(1.0, 1 / best))
    assert process.tokens == len(tokens)


def test_the_best_wealth_may_lie_inside_a_batch():
    tokens = [2, 2, 2, 2, 0, 0, 0, 0, 0, 0]
    process = EProcess(("q", "none"))
    process.add(RATIOS[tokens])
    assert process.best == pytest.approx(math.log(plain_wealth(tokens[:4])))
    assert process.best > 2 * math.log(plain_wealth(tokens))


def test_two_hundred_right_runs_never_cross_a_thousandth_and_a_leak_soon_crosses_a_millionth():
    rng = np.random.default_rng(3)
    for _ in range(200):
        process = EProcess(("q", "none"))
        process.add(RATIOS[rng.choice(3, 1000, p=P)])
        assert process.p_value > 1e-3
    process = EProcess(("q", "none"))
    process.add(RATIOS[rng.choice(3, 12000, p=0.9 * P + 0.1 * Q)])
    assert process.p_value < 1e-6


def test_an_alternative_without_the_token_loses_all_of_its_highest_stake_and_no_more():
    process = EProcess(("q",))
    process.add(np.zeros((3, 1)))
    assert process.best == 0.0
    assert math.isfinite(process.curve("x").y[-1])


def test_the_curve_keeps_its_ends_however_long_the_run():
    process = EProcess(("q", "none"))
    for _ in range(1500):
        process.add(RATIOS[[0]])
    curve = process.curve("x")
    assert curve.x[0] == 0
    assert curve.x[-1] == 1500
    assert len(curve.x) <= 401
