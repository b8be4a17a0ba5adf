import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.performance.online_calibration import CENTRES, HIGHEST, Calibration


@given(st.floats(0, 1))
def test_nothing_learned_leaves_an_estimate_as_it_is(estimate):
    assert Calibration(patience=5)(estimate) == pytest.approx(min(estimate, HIGHEST))


@pytest.mark.parametrize("estimate", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_after_many_trials_an_estimate_is_what_came_true(estimate, truth):
    calibration = Calibration(patience=5)
    for trial in range(4000):
        calibration.learn(estimate, trial % 10 < 10 * truth)
    assert calibration(estimate) == pytest.approx(truth, abs=0.09)


def test_what_is_learned_of_high_estimates_says_less_of_low_ones():
    calibration = Calibration(patience=5)
    for _ in range(100):
        calibration.learn(0.95, False)
    assert calibration(0.95) / 0.95 < calibration(CENTRES[0]) / CENTRES[0] < 1


def test_knowledge_from_before_is_where_learning_starts():
    calibration = Calibration(patience=5, before=lambda estimate: estimate / 2)
    assert calibration(0.4) == pytest.approx(0.2)
    for _ in range(2000):
        calibration.learn(0.4, True)
    assert calibration(0.4) > 0.9


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=50), st.floats(0, 1))
def test_a_corrected_estimate_is_a_probability(trials, estimate):
    calibration = Calibration(patience=1)
    for tried, hit in trials:
        calibration.learn(tried, hit)
    assert 0 <= calibration(estimate) <= HIGHEST
