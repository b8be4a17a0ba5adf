"""Bootstrap intervals: beside numpy's, and never different from one call to the next."""

import numpy
import pytest

from specdec.bench.bootstrap import median_interval, ratio_interval

SAMPLE = numpy.random.default_rng(0).lognormal(0.4, 0.2, 40).tolist()


def test_the_median_and_its_interval_are_those_of_a_bootstrap_with_other_random_numbers():
    found = median_interval(SAMPLE)
    draws = numpy.median(numpy.random.default_rng(1).choice(SAMPLE, (20000, len(SAMPLE))), axis=1)
    low, high = numpy.quantile(draws, [0.025, 0.975])
    assert found.value == pytest.approx(numpy.median(SAMPLE))
    assert found.low == pytest.approx(low, abs=0.03)
    assert found.high == pytest.approx(high, abs=0.03)


def test_a_ratio_draws_its_pairs_together():
    below = [1.0 + n for n in range(20)]
    found = ratio_interval([2 * value for value in below], below)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    other = ratio_interval([2 * value for value in below], below[::-1])
    assert other.low < 2 < other.high


def test_the_same_sample_always_has_the_same_interval():
    assert median_interval(SAMPLE) == median_interval(SAMPLE)


def test_one_value_has_no_interval():
    found = median_interval([1.5])
    assert (found.value, found.low, found.high) == (1.5, None, None)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says():
    source = numpy.random.default_rng(2)
    found = [median_interval(source.normal(1.0, 0.3, 15).tolist()) for _ in range(40)]
    assert 33 <= sum(f.low <= 1.0 <= f.high for f in found) <= 40
