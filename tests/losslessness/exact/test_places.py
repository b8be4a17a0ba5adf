"""Places of a tree: which a draft has, at which of them a wrong rule could show, and how they are said."""

import pytest
import torch

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.interfaces.declarations import Kind
from specdec.losslessness.exact.coverage import Coverage
from specdec.losslessness.exact.enumeration import sample_draft
from specdec.losslessness.exact.on_tables import OnTables
from specdec.losslessness.exact.own_shape import own_siblings, roomy_model
from specdec.losslessness.exact.place_models import Siblings, place_model
from specdec.losslessness.exact.places import declared_places, drafted_places, visible_places, words
from specdec.losslessness.exact.runs import emitted_before
from specdec.losslessness.exact.toy_models import shown
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.trees.tree_shape import TreeShape


def drawn_tree(q):
    """Two draws at the root, the first of which has one child."""
    sketch = TreeSketch(0, 3)
    first, second = sketch.add(0, 1), sketch.add(0, 2)
    below = sketch.add(first, 0)
    order = {0: (first, second), first: (below,)}
    return sketch.freeze(Draw.WITHOUT_REPLACEMENT, draw_order=order, q=torch.tensor(q), q_row=[0, 1, -1, -1])


def test_a_place_is_a_depth_and_a_rank_in_draw_order():
    assert drafted_places(drawn_tree([[0.2, 0.4, 0.4], [1.0, 0.0, 0.0]])) == {(1, 1), (1, 2), (2, 1)}


def test_a_draw_that_is_forced_is_not_tested():
    tree = drawn_tree([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    assert visible_places(tree, lambda path: (0.5, 0.3, 0.2)) == {(1, 1)}
    tree = drawn_tree([[0.2, 0.4, 0.4], [0.5, 0.0, 0.5]])
    assert visible_places(tree, lambda path: (0.5, 0.3, 0.2)) == {(1, 1), (1, 2), (2, 1)}


def test_what_the_target_cannot_reach_or_decides_by_itself_is_not_tested():
    tree = drawn_tree([[0.2, 0.4, 0.4], [0.5, 0.0, 0.5]])
    assert visible_places(tree, lambda path: (0.5, 0.0, 0.5)) == {(1, 1), (1, 2)}
    assert visible_places(tree, lambda path: (0.0, 1.0, 0.0) if path else (0.5, 0.3, 0.2)) == {(1, 1), (1, 2)}


def test_declared_places_leave_out_what_more_nodes_would_take():
    assert declared_places((4, 4, 4), 4) == {(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)}
    assert declared_places((1, 1), None) == {(1, 1), (2, 1)}


def test_places_are_said_level_by_level_and_equal_levels_together():
    places = {(1, n) for n in range(1, 5)} | {(d, n) for d in (2, 3) for n in (1, 2)} | {(5, 1), (6, 3), (6, 1)}
    assert words(places) == "depth 1: siblings 1-4; depths 2-3: siblings 1-2; depth 5: sibling 1; depth 6: siblings 1, 3"


def test_what_was_not_reached_is_named():
    wanted = declared_places((2, 2), None)
    assert Coverage(wanted, wanted).places_words == "exact for every place of the tree (depths 1-2: siblings 1-2)"
    some = Coverage(wanted, wanted - {(2, 2)}, lengths=frozenset({2, 3, 4, 9}), token_ids=8, nodes=3, own_nodes=6)
    assert some.places_words == "exact to depth 1: siblings 1-2; depth 2: sibling 1; not reached: depth 2: sibling 2"
    assert some.scope_words == (
        "prefixes of 2-4, 9 tokens, token ids below 8, one step, one sequence at a time, at most 3 of 6 nodes at once"
    )
    left = (((1,), 2), ((0, 1), 3), ((2,), 1), ((3,), 1), ((4,), 1), ((5,), 1))
    assert Coverage(wanted, wanted, left=left).scope_words.endswith(
        "one sequence at a time, not sibling 2 below node 2, sibling 3 below node 1-2, sibling 1 below node 3, "
        "sibling 1 below node 4, 2 more"
    )
    assert Coverage(wanted).places_words.startswith("exact to the root alone; not reached: depths 1-2")


def test_a_shape_knows_the_most_children_of_every_level():
    assert TreeShape.of([(0,), (1,), (1, 0), (1, 1), (1, 0, 0)]).max_children == (2, 2, 1)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("eagle-sampled", {"depth 1: siblings 1-4; depths 2-4: siblings 1-3; depth 5: siblings 1-2"}),
        ("self-iid", {"depth 1: siblings 1-3; depth 2: siblings 1-2; depth 3: sibling 1"}),
        ("self-dynamic", {"depths 1-4: siblings 1-4"}),
    ],
)
def test_the_places_of_a_strategy_are_those_of_its_own_trees(strategy, expected):
    catalog = load_catalog()
    resolved = check(read(strategy, catalog), catalog)
    tables, model = OnTables(resolved, catalog), roomy_model()
    decoder = tables.table_decoder(model, tables.samplings[0])
    drafts = [sample_draft(decoder, model.prefix, number) for number in range(4)]
    siblings = own_siblings(drafts, resolved.parts[Kind.TREE].declares)
    assert {words({(one.depth, rank) for one in siblings for rank in range(1, one.count + 1)})} == expected
    assert [one.depth for one in siblings] == sorted({one.depth for one in siblings}) + [
        one.depth for one in siblings[len({one.depth for one in siblings}) :]
    ]


def test_a_model_of_a_later_step_is_certain_before_it():
    catalog = load_catalog()
    tables = OnTables(check(read("self-sampled-chain", catalog), catalog), catalog)
    model = place_model(Siblings((), 1), 0, (0, 1), emitted=(2, 1, 0), agree=True)
    decoder = tables.table_decoder(model, tables.samplings[0])
    assert len(emitted_before(decoder, (0, 1), steps=0)) == 1
    assert model.target["rows"]["2,1,0"] != model.drafter["rows"]["2,1,0"]


def test_long_prefixes_are_abbreviated():
    assert shown([1, 2, 3]) == "[1, 2, 3]"
    assert shown(range(130)) == "[..., 124, 125, 126, 127, 128, 129] (130 tokens)"
