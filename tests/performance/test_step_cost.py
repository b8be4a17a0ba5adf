from hypothesis import given
from hypothesis import strategies as st

from specdec.performance.cost_model import CostModel
from specdec.performance.step_cost import Prices, best_size

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


def test_a_draft_level_of_a_given_price_costs_that_whatever_is_expanded_there():
    costs = CostModel(source="flat", widths=(1, 2), contexts=(64,), forward_seconds=((2.0, 2.0),))
    prices = Prices(costs, rows=1, context=64, level=0.25)
    assert prices.draft([1, 4, 8]) == 3 * 0.25 * 2.0
