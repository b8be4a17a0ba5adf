from hypothesis import given
from hypothesis import strategies as st

from specdec.performance.step_cost import best_size

GAINS = st.lists(st.floats(0, 1), max_size=8).map(lambda gains: sorted(gains, reverse=True))


@given(gains=GAINS, per_node=st.floats(0.01, 2), plain_tokens=st.integers(1, 4))
def test_the_best_size_is_that_of_all_sizes_with_the_most_tokens_a_second(gains, per_node, plain_tokens):
    def seconds(nodes):
        return 1.0 + per_node * nodes

    rates = [(plain_tokens + sum(gains[:size])) / seconds(size) for size in range(len(gains) + 1)]
    size, rate = best_size(gains, seconds, plain_tokens=plain_tokens)
    assert abs(rate - max(rates)) < 1e-12
    assert abs(rates[size] - rate) < 1e-12


def test_of_sizes_that_are_equally_good_the_smaller_is_best():
    assert best_size([1.0, 1.0], lambda nodes: 1.0 + nodes) == (0, 1.0)
