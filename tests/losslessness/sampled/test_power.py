import numpy as np
import pytest

from specdec.losslessness.sampled.power import bound_along, bound_anywhere, visible_along, visible_anywhere
from specdec.losslessness.sampled.statistics import ChiSquare, chi_square

TABLE = {(3, 0.1): 596, (10, 0.01): 85188, (100, 0.01): 193765, (1000, 0.1): 5293, (4096, 0.01): 1030028, (32000, 0.1): 28061}


@pytest.mark.parametrize(("cells", "distance"), TABLE)
def test_chi_square_sees_what_the_table_of_sample_sizes_says(cells, distance):
    assert visible_anywhere(cells - 1, TABLE[cells, distance], alpha=1e-3) == pytest.approx(distance, rel=1e-3)


def test_the_focused_test_sees_a_hundredth_with_91045_tokens():
    assert visible_along(0.5 / 91045**0.5, alpha=1e-6, sides=1) == pytest.approx(0.01, rel=1e-4)
    assert visible_along((0.1 * 0.9 / 33380) ** 0.5, alpha=1e-6, sides=1) == pytest.approx(0.01, rel=2e-2)


def test_without_tokens_nothing_is_seen_and_nothing_excluded():
    assert visible_anywhere(0, 0, alpha=1e-6) == bound_anywhere(0.0, 0, 0) == 1.0
    assert bound_along(0.0, 10.0) == 1.0


def test_the_bound_along_a_direction_has_two_sides():
    assert bound_along(0.0, 0.001) == pytest.approx(0.00196, rel=1e-3)
    assert bound_along(-0.01, 0.001) == bound_along(0.01, 0.001) == pytest.approx(0.01196, rel=1e-3)


def test_the_bound_covers_the_true_distance_in_at_least_95_runs_of_100():
    rng = np.random.default_rng(2)
    distribution = rng.dirichlet(np.ones(10))
    wrong = 0.9 * distribution + 0.1 * np.roll(distribution, 1)
    distance = np.abs(wrong - distribution).sum() / 2
    covered = 0
    for _ in range(100):
        found = chi_square(rng.multinomial(2000, wrong).astype(float), distribution)
        covered += bound_anywhere(found.statistic, found.freedom, found.samples) >= distance
    assert covered >= 93


def test_sums_of_contexts_keep_freedom_and_tokens():
    one = chi_square(np.array([60.0, 40.0]), np.array([0.5, 0.5]))
    both = sum((one, one), ChiSquare())
    assert (both.freedom, both.samples, both.statistic) == (2, 200, pytest.approx(2 * one.statistic))
