import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.losslessness.sampled.statistics import chi_square, focused, holm, pit, pooled, uniformity

weights = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=12)


@given(weights, st.integers(1, 400))
def test_pooled_cells_expect_enough_and_every_cell_has_one_group(row, total):
    expected = np.array(row) / sum(row) * total
    groups = pooled(expected)
    if groups is None:
        assert total < 10 + expected.max()
        return
    sums = np.bincount(groups, expected)
    assert (sums >= 5 - 1e-9).all()
    assert sums.sum() == pytest.approx(total)


def test_pooling_never_looks_at_what_was_seen():
    probs = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    one, other = np.array([50.0, 30, 10, 6, 4]), np.array([20.0, 20, 20, 20, 20])
    assert chi_square(one, probs).cells == chi_square(other, probs).cells == 5 - 1


def test_chi_square_of_two_cells_is_the_square_of_the_focused_z():
    found = chi_square(np.array([70.0, 30.0]), np.array([0.6, 0.4]))
    z, _ = focused(70, 60, 100 * 0.6 * 0.4)
    assert found.statistic == pytest.approx(z**2)
    assert (found.freedom, found.samples) == (1, 100)


def test_the_stated_mean_and_variance_of_pearsons_statistic_are_those_of_an_enumeration():
    probs, total = np.array([0.5, 0.3, 0.2]), 25
    mean = square = 0.0
    from math import comb

    for a in range(total + 1):
        for b in range(total - a + 1):
            weight = comb(total, a) * comb(total - a, b) * probs[0] ** a * probs[1] ** b * probs[2] ** (total - a - b)
            found = chi_square(np.array([a, b, total - a - b], dtype=float), probs)
            mean, square = mean + weight * found.statistic, square + weight * found.statistic**2
    assert mean == pytest.approx(found.freedom)
    assert square - mean**2 == pytest.approx(found.variance)


def test_p_values_of_a_right_distribution_are_uniform_and_those_of_a_wrong_one_are_not():
    rng = np.random.default_rng(0)
    distribution = rng.dirichlet(np.ones(20) * 0.5)
    p_values = [chi_square(rng.multinomial(300, distribution).astype(float), distribution).p_value for _ in range(400)]
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.09
    wrong = 0.7 * distribution + 0.3 / 20
    assert np.median([chi_square(rng.multinomial(300, wrong).astype(float), distribution).p_value for _ in range(50)]) < 1e-3


def test_a_token_that_cannot_be_has_a_p_value_of_zero():
    assert chi_square(np.array([10.0, 1.0]), np.array([1.0, 0.0])).p_value == 0.0


def test_the_transform_of_a_token_is_uniform_over_its_own_share():
    probs, keys = np.array([0.2, 0.5, 0.3]), np.array([2.0, 1.0, 3.0])
    assert pit(probs, keys, 1, 0.0) == 0.0
    assert pit(probs, keys, 0, 0.0) == pytest.approx(0.5)
    assert pit(probs, keys, 2, 1.0) == pytest.approx(1.0)
    ties = np.array([1.0, 1.0, 0.0])
    assert pit(probs, ties, 0, 0.5) == pit(probs, ties, 1, 0.5) == pytest.approx(0.3 + 0.35)


def test_uniformity_sees_numbers_that_lean():
    rng = np.random.default_rng(1)
    assert min(test.p_value for test in uniformity(rng.random(2000))) > 1e-3
    assert max(test.p_value for test in uniformity(rng.random(2000) ** 1.3)) < 1e-6


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values):
    adjusted = holm(p_values)
    for alpha in (0.001, 0.05, 0.3):
        rejected = set()
        for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
            if (len(p_values) - rank) * p_values[index] >= alpha:
                break
            rejected.add(index)
        assert {i for i, p in enumerate(adjusted) if p < alpha} == rejected


def test_what_lies_in_groups_of_several_tokens_is_said_to_be_out_of_sight():
    distribution = np.array([0.5, 0.45, 0.03, 0.02])
    found = chi_square(np.array([50.0, 45, 3, 2]), distribution)
    assert (found.cells, found.blind) == (3, pytest.approx(0.05))
    assert (found + found).blind == pytest.approx(0.05)
    assert chi_square(np.array([500.0, 450, 30, 20]), distribution).blind == 0
    assert chi_square(np.array([500.0, 450, 30, 20]), distribution, rest=True).blind == pytest.approx(0.02)


def test_a_cell_that_cannot_occur_hides_nothing():
    assert chi_square(np.array([60.0, 40.0, 0.0]), np.array([0.6, 0.4, 0.0]), rest=True).blind == 0


@given(weights, st.integers(60, 400), st.randoms(use_true_random=False))
def test_a_distribution_is_no_farther_off_than_its_groups_and_what_they_hide(row, total, random):
    distribution = np.array(row) / sum(row)
    other = np.array([0.01 + random.random() for _ in row])
    other /= other.sum()
    groups = pooled(distribution * total)
    if groups is None:
        return
    apart = np.abs(np.bincount(groups, distribution) - np.bincount(groups, other)).sum() / 2
    assert np.abs(distribution - other).sum() / 2 <= apart + chi_square(distribution * total, distribution).blind + 1e-9
