"""Searches among the shapes of one builder: every one of its options is looked at, and printed so that a spec can take it."""

import pytest

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.errors import SpecError
from specdec.performance.acceptance_profile import AcceptanceProfile, Rates
from specdec.performance.cost_model import CostModel, DrafterCost
from specdec.tree_search.brute_force import all_trees
from specdec.tree_search.expected_tokens import ROOT_ONLY, expected_tokens
from specdec.tree_search.families import Family, family_shapes, tree_options
from specdec.tree_search.optimizer import Bounds, best_tree, search_tree
from specdec.trees.tree_shape import TreeShape

RATES = Rates(((0.9, 0.02, 0.01), (0.8, 0.05, 0.02), (0.4, 0.3, 0.2)))
COSTS = CostModel(
    source="machine",
    widths=(1, 33),
    contexts=(100, 200),
    forward_seconds=((0.01, 0.01), (0.02, 0.02)),
    spread=((0.0, 0.0), (0.0, 0.0)),
    drafter=DrafterCost(name="d", first_seconds=0.0, widths=(1, 8), seconds=(0.0, 0.0)),
)
SIZES = tuple(range(1, 13))


@pytest.mark.parametrize(
    ("family", "count"),
    [(Family.CHAINS, sum(min(4, 12 // chains) for chains in (1, 2, 3))), (Family.DELAYED, None)],
)
def test_every_shape_of_a_family_is_within_the_bounds_and_comes_once(family, count):
    shapes = list(family_shapes(family, nodes=12, depth=4, by_depth=RATES.by_depth))
    assert len(shapes) == len(set(shapes)) == (len(shapes) if count is None else count)
    assert all(shape.num_nodes <= 12 and shape.depth <= 4 and max(shape.max_children) <= 3 for shape in shapes)


def test_delayed_shapes_are_all_stems_with_all_widths():
    found = {shape.max_children for shape in family_shapes(Family.DELAYED, nodes=5, depth=3, by_depth=RATES.by_depth)}
    assert found == {(1,), (1, 1), (1, 1, 1), (1, 2), (1, 3), (1, 2, 1), (1, 1, 2), (1, 1, 3)}


DRAWN = [family for family in Family if family is not Family.ANY]


@pytest.mark.parametrize("family", DRAWN)
def test_the_printed_options_grow_a_tree_of_that_shape(family):
    catalog = load_catalog()
    table = {"use": "tabular", "vocab": 6, "random": {"seed": 1}}
    for shape in family_shapes(family, nodes=7, depth=3, by_depth=RATES.by_depth):
        options = tree_options(family, shape)
        spec = {"target": table, "drafter": table, "tree": options, "verifier": {"use": "match"}}
        declared = check(read(spec, catalog), catalog).parts["tree"].declares
        assert (declared.max_nodes, declared.max_depth) == (shape.num_nodes, shape.depth)


def test_plain_decoding_and_trees_of_any_shape_have_no_options():
    assert tree_options(Family.DELAYED, ROOT_ONLY) == tree_options(Family.ANY, TreeShape.k_ary((2, 1))) == {}


@pytest.mark.parametrize("family", DRAWN)
def test_the_fastest_of_a_family_is_found_and_no_faster_than_the_fastest_tree(family):
    found = best_tree(RATES, COSTS, Bounds(SIZES, 4, family=family), context=150)
    anything = best_tree(RATES, COSTS, Bounds(SIZES, 4), context=150)
    every = [
        1.0,
        *(float(expected_tokens(s, RATES.children)) for s in family_shapes(family, nodes=11, depth=4, by_depth=RATES.by_depth)),
    ]
    assert max(candidate.tokens for candidate in found.by_size) == pytest.approx(max(every))
    assert 1 < found.best.speedup <= anything.best.speedup + 1e-12


def test_where_first_tokens_are_sure_and_later_ones_are_not_branches_come_late():
    best = best_tree(RATES, COSTS, Bounds(SIZES, 4, family=Family.DELAYED), context=150).best
    assert tree_options(Family.DELAYED, best.shape)["stem"] == 2
    assert max(best.shape.max_children) > 1


def test_a_profile_of_ranked_drafts_is_refused_for_drawn_trees():
    profile = AcceptanceProfile(source="ranked", reached=(2, 1), accepted=((1, 0), (1,)), paths=("00",))
    with pytest.raises(SpecError, match=r"ranked.*picked by rank; 'chains' draws them otherwise.*--own-steps"):
        search_tree(profile, COSTS, Bounds(SIZES, 2, family=Family.CHAINS), context=150)


def expansions_of(shape):
    """Whether every node has as many children as there are rates, or none."""
    return all(count == 3 for count in shape.child_counts().values())


@pytest.mark.parametrize("nodes", [3, 6, 9, 10])
def test_a_node_of_top_then_one_has_all_measured_children_or_none_and_the_best_nodes_have_them(nodes):
    by_depth = ((0.5, 0.2, 0.1), (0.6, 0.1, 0.05), (0.3, 0.3, 0.2))
    rates = Rates(by_depth)
    every = [TreeShape.of(sorted(tree)) for tree in all_trees(nodes=nodes - nodes % 3, depth=3, width=3)]
    best = max(float(expected_tokens(shape, rates.children)) for shape in every if expansions_of(shape))
    found = list(family_shapes(Family.TOP_THEN_ONE, nodes=nodes, depth=3, by_depth=by_depth))
    assert all(expansions_of(shape) and shape.num_nodes <= nodes for shape in found)
    assert max(float(expected_tokens(shape, rates.children)) for shape in found) == pytest.approx(best)


def test_pairs_double_from_level_to_level():
    shapes = list(family_shapes(Family.PAIR, nodes=13, depth=5, by_depth=((0.6, 0.2),)))
    assert [shape.max_children for shape in shapes] == [(2,), (2, 2)]
    assert tree_options(Family.PAIR, shapes[1]) == {"use": "pair", "depth": 2}


@pytest.mark.parametrize(("family", "draw"), [(Family.PAIR, "iid"), (Family.TOP_THEN_ONE, "pair"), (Family.CHAINS, "pair")])
def test_a_profile_of_draws_of_another_kind_is_refused(family, draw):
    profile = AcceptanceProfile(source="own", reached=(4,), accepted=((2, 1),), provenance={"draw": draw})
    with pytest.raises(SpecError, match=rf"own.*were {draw} draws; '{family}' draws them otherwise.*tree.use={family}"):
        search_tree(profile, COSTS, Bounds(SIZES, 2, family=family), context=150)
