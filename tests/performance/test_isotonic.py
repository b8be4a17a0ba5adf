from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.performance.isotonic import Curve, rising

values = st.lists(st.floats(-100, 100, allow_nan=False), min_size=1, max_size=8)


@given(values)
def test_rising_values_never_fall_keep_their_mean_and_leave_a_rising_list_alone(measured):
    fitted = rising(measured)
    assert all(after >= before - 1e-9 for before, after in pairwise(fitted))
    assert sum(fitted) == pytest.approx(sum(measured), abs=1e-6)
    assert rising(sorted(measured)) == tuple(sorted(measured))


@given(values)
def test_the_fit_is_the_known_minimax_of_averages(measured):
    """Least squares under monotonicity: at i, the largest over a <= i of the smallest over b >= i of the mean of a..b."""

    def mean(start, end):
        return sum(measured[start : end + 1]) / (end + 1 - start)

    size = len(measured)
    plain = [max(min(mean(a, b) for b in range(i, size)) for a in range(i + 1)) for i in range(size)]
    assert rising(measured) == pytest.approx(tuple(plain), abs=1e-9)


def test_weights_pull_the_pool_to_what_was_measured_more_often():
    assert rising([1.0, 0.0], [3.0, 1.0]) == (0.75, 0.75)


def test_a_curve_passes_through_its_points_and_goes_on_as_steep_as_its_last_half():
    curve = Curve((1, 2, 4, 8), (1.0, 1.0, 2.0, 4.0))
    assert [curve(x) for x in (0, 1, 2, 3, 4, 6, 8, 16)] == [1.0, 1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0]
    assert Curve((3,), (5.0,))(100) == 5.0
    assert Curve((0, 1), (0.0, 1.0), limit=1.0)(2) == 1.0


@given(values, st.floats(-5, 20), st.floats(-5, 20))
def test_a_curve_never_falls(measured, first, second):
    curve = Curve(tuple(range(1, len(measured) + 1)), tuple(measured))
    assert curve(min(first, second)) <= curve(max(first, second)) + 1e-9
