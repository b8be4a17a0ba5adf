import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import SpecError
from specdec.performance.acceptance_profile import AcceptanceProfile, Drafted, Rates, encoded
from specdec.performance.cost_model import CostModel, DrafterCost
from specdec.tree_search.brute_force import brute_force
from specdec.tree_search.dynamic_programming import optimal_trees
from specdec.tree_search.expected_tokens import expansions, expected_tokens, reach
from specdec.tree_search.greedy import best_first
from specdec.tree_search.optimizer import (
    Bounds,
    Method,
    best_tree,
    predicted,
    rates_for,
    replayed_tau,
    search_tree,
    shapes,
    step_seconds,
)
from specdec.trees.tree_shape import TreeShape


@st.composite
def tables(draw, *, falling=False):
    """Rates of two to three depths and up to three ranks."""
    width = draw(st.integers(1, 3))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        weights = [draw(st.integers(0, 10)) for _ in range(width)]
        row = tuple(w / max(11, sum(weights)) for w in weights)
        rows.append(tuple(sorted(row, reverse=True)) if falling else row)
    return Rates(tuple(rows))


def width_of(rates):
    return max(map(len, rates.by_depth))


@settings(max_examples=30)
@given(tables(), st.integers(1, 5), st.integers(1, 3))
def test_the_dynamic_program_is_as_good_as_looking_at_every_tree(rates, nodes, depth):
    best = brute_force(rates.children, nodes=nodes, depth=depth, width=width_of(rates))
    optima = optimal_trees(rates.by_depth, nodes=nodes, depth=depth)
    assert optima.tokens[nodes + 1] == pytest.approx(expected_tokens(best, rates.children), rel=1e-12)
    shape = optima.shape(nodes + 1)
    assert shape.num_nodes <= nodes
    assert shape.depth <= depth
    assert expected_tokens(shape, rates.children) == pytest.approx(optima.tokens[nodes + 1], rel=1e-12)


@given(tables(), st.integers(1, 12), st.integers(1, 4))
def test_every_size_of_one_program_is_worth_what_it_says_and_more_nodes_are_never_worse(rates, nodes, depth):
    optima = optimal_trees(rates.by_depth, nodes=nodes, depth=depth)
    for size in range(1, nodes + 2):
        assert expected_tokens(optima.shape(size), rates.children) == pytest.approx(optima.tokens[size], rel=1e-12)
        assert size == 1 or optima.tokens[size] >= optima.tokens[size - 1]


@given(tables(falling=True), st.integers(1, 12), st.integers(1, 4))
def test_best_first_is_optimal_where_rates_fall_from_rank_to_rank_and_from_depth_to_depth(rates, nodes, depth):
    shape = best_first(rates.children, nodes=nodes, depth=depth)
    optima = optimal_trees(rates.by_depth, nodes=nodes, depth=depth)
    assert expected_tokens(shape, rates.children) == pytest.approx(optima.tokens[nodes + 1], rel=1e-12)


@given(tables(falling=True))
def test_best_first_puts_the_likeliest_nodes_first(rates):
    chances = [reach(path, rates.children) for path in best_first(rates.children, nodes=10, depth=4).paths]
    assert chances == sorted(chances, reverse=True)


def test_expansions_are_the_nodes_with_children_level_by_level():
    assert expansions(TreeShape.k_ary([3, 2, 1])) == (1, 3, 6)
    assert expansions(TreeShape.of([[0], [1], [0, 0]])) == (1, 1)
    assert expansions(TreeShape(())) == ()


def test_a_path_of_ranks_without_rates_is_never_reached():
    assert reach((0, 5), lambda path: (0.5, 0.2)) == 0


def test_brute_force_refuses_what_would_take_for_ever():
    with pytest.raises(SpecError, match="too many"):
        brute_force(lambda path: (0.5,), nodes=99, depth=3, width=1)


def linear(per_token, level=0.0, overhead=0.0):
    return CostModel(
        source="linear",
        widths=(1, 65),
        contexts=(1,),
        forward_seconds=((1.0, 1.0 + 64 * per_token),),
        overhead_seconds=overhead,
        drafter=DrafterCost(name="d", first_seconds=level, widths=(1,), seconds=(level,)),
    )


RATES = Rates(((0.6, 0.2, 0.1),))


@pytest.mark.parametrize("method", Method)
def test_no_candidate_of_a_search_is_faster_than_what_it_returns(method):
    bounds = Bounds(tuple(range(1, 7)), 3, method)
    found = best_tree(RATES, linear(0.05, 0.05), bounds, context=1)
    speeds = [
        predicted(shape, float(expected_tokens(shape, RATES.children)), linear(0.05, 0.05), context=1).speedup
        for shape in shapes(RATES, bounds)
    ]
    assert found.best.speedup == pytest.approx(max(speeds))
    assert found.best.speedup > 1


def test_plain_decoding_wins_where_tokens_or_drafts_cost_too_much():
    bounds = Bounds(tuple(range(1, 9)), 4)
    for costs in (linear(1.0), linear(0.0, 2.0), linear(0.0, 0.0, 3.0)):
        best = best_tree(RATES, costs, bounds, context=1).best
        assert (best.shape.num_nodes, best.speedup) == (0, 1.0)


def test_free_tokens_make_the_largest_tree_and_dear_ones_a_small_one():
    bounds = Bounds(tuple(range(1, 17)), 4)
    sizes = [best_tree(RATES, linear(cost, 0.01), bounds, context=1).best.size for cost in (0.0, 0.02, 0.1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16


def correlated():
    """An answer in two moods: rank 0 follows rank 0 and rank 1 follows rank 1, which no rates by depth can tell."""
    trail = tuple((0, 0, 0) if place % 6 < 3 else (1, 1, 1) for place in range(60))
    accepted = tuple((30, 30) for _ in range(3))
    return AcceptanceProfile(source="moods", reached=(60, 60, 60), accepted=accepted, paths=(encoded(trail),), path_depth=3)


def test_a_profile_with_paths_is_replayed_and_its_rates_belong_to_the_steps_of_the_tree():
    profile = correlated()
    chain = TreeShape.chain(2)
    assert replayed_tau(profile, chain) == 6 / 4
    assert rates_for(profile, chain, by_rank=False).children(()) == (10 / 39, 29 / 39)
    found = search_tree(profile, linear(0.05), Bounds(tuple(range(1, 8)), 9), context=1)
    assert found.replayed
    assert found.best.shape.depth <= profile.path_depth
    assert found.best.tokens == replayed_tau(profile, found.best.shape)
    assert all(found.best.speedup >= candidate.speedup for candidate in found.by_size)


def test_a_step_in_which_nothing_is_drafted_scores_the_root_alone():
    costs = linear(0.1, level=0.5, overhead=0.25)
    chain = TreeShape.chain(4)
    assert step_seconds(TreeShape(()), costs, context=1) == 1
    assert step_seconds(chain, costs, context=1) == pytest.approx(4 * 0.5 + 1.4 + 0.25)
    sparse = step_seconds(chain, costs, context=1, drafted=Drafted(0.25, 2.0))
    assert sparse == pytest.approx(4 * 0.5 + 0.75 * 1 + 0.25 * 1.2 + 0.25)
    one = predicted(chain, 2.0, costs, context=1, drafted=Drafted(0.25, 2.0))
    assert (one.step_seconds, one.speedup) == (pytest.approx(sparse), pytest.approx(2 / sparse))


def test_bounds_without_room_are_refused():
    for sizes, depth in (((), 1), ((0,), 1), ((1,), 0)):
        with pytest.raises(SpecError, match="at least 1"):
            Bounds(sizes, depth)
