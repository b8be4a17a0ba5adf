"""Trees of the newer kinds of draw: which children they have, with which probability, and how they are stamped."""

import pytest
import torch

from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import Budget, DraftProbs
from specdec.sampling.enumeration import outcomes
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_rules import validate

Q = [0.1, 0.4, 0.3, 0.2]


def grown(builder, rows, rng, budget=None):
    """The tree of a builder whose frontier nodes get rows(path) as q."""
    steps = builder.grow(0, 3, budget or Budget(nodes=64, depth=8), rng.draft)
    try:
        asked = next(steps)
        while True:
            q = torch.tensor([rows(tuple(asked.tree.path(node))) for node in asked.nodes], dtype=torch.float64)
            asked = steps.send(DraftProbs(q))
    except StopIteration as stop:
        return stop.value


def children(builder, q=Q, **budget):
    """The distribution of the root's children, as tokens in draw order."""

    def run(rng):
        tree = grown(builder, lambda path: q, rng, Budget(nodes=64, depth=1, **budget))
        validate(tree, vocab_size=len(tree.q[0]))
        return tuple(tree.tokens[child] for child in tree.draw_order.get(0, ()))

    return outcomes(run)


def top_then_one(**options):
    return TopThenOne.build(TopThenOneOptions(**options), BuildTools())


def test_all_but_the_last_child_are_the_likeliest_and_the_last_is_drawn_from_the_rest():
    assert children(top_then_one(widths=(3,))) == pytest.approx({(1, 2, 3): 2 / 3, (1, 2, 0): 1 / 3})
    assert children(top_then_one(widths=(1,))) == pytest.approx({(token,): q for token, q in enumerate(Q)})


def test_of_equally_likely_tokens_the_lowest_ids_are_certain_and_impossible_ones_are_never_drafted():
    assert children(top_then_one(widths=(2,)), [0.4, 0.2, 0.4, 0.0]) == pytest.approx({(0, 2): 2 / 3, (0, 1): 1 / 3})
    assert children(top_then_one(widths=(3,)), [0.0, 0.7, 0.3, 0.0]) == pytest.approx({(1, 2): 1.0})


def test_a_pair_is_a_draw_and_the_likeliest_token_or_that_and_a_draw_from_the_others():
    pairs = children(Pair.build(PairOptions(depth=1), BuildTools()))
    assert pairs == pytest.approx(
        {(0, 1): 0.1, (2, 1): 0.3, (3, 1): 0.2, (1, 0): 0.4 / 6, (1, 2): 0.4 * 3 / 6, (1, 3): 0.4 * 2 / 6}
    )


def test_a_pair_of_a_certain_token_is_that_token_alone():
    assert children(Pair.build(PairOptions(depth=1), BuildTools()), [0.0, 1.0, 0.0, 0.0]) == pytest.approx({(1,): 1.0})


def test_chains_pass_through_common_beginnings_with_one_draw_each():
    def run(rng):
        tree = grown(Chains(ChainsOptions(count=3, length=2)), lambda path: [0.5, 0.5], rng)
        validate(tree, vocab_size=len(tree.q[0]))
        for node, drawn in tree.draw_order.items():
            passing = 3 if node == 0 else tree.draw_order[tree.parents[node]].count(node)
            assert len(drawn) == passing
        return tuple(sorted(tuple(tree.path_tokens(node)) for node in range(len(tree)) if tree.depths[node] == 2))

    found = outcomes(run)
    assert found[((0, 0),)] == pytest.approx(1 / 64)
    assert found[((0, 0), (1, 1))] == pytest.approx(6 / 64)


def test_chains_end_at_a_stop_id_and_a_small_budget_drops_chains_before_levels():
    def sizes(rng, **budget):
        tree = grown(Chains(ChainsOptions(count=3, length=4)), lambda path: [0.5, 0.5], rng, Budget(**budget))
        assert all(tree.tokens[tree.parents[node]] != 1 for node in range(1, len(tree)) if tree.parents[node])
        assert tree.num_drafted <= budget["nodes"]
        return tree.max_depth, len(tree.draw_order[0])

    stop = frozenset({1})
    assert set(outcomes(lambda rng: sizes(rng, nodes=2, depth=9, stop_ids=stop))) == {(1, 2)}
    assert {draws for _, draws in outcomes(lambda rng: sizes(rng, nodes=64, depth=2, stop_ids=stop))} == {3}


@pytest.mark.parametrize(
    ("builder", "kind"),
    [
        (top_then_one(widths=(2, 2)), Draw.TOP_THEN_ONE),
        (Pair.build(PairOptions(depth=2), BuildTools()), Draw.PAIR),
        (Chains(ChainsOptions(count=2, length=2)), Draw.IID),
    ],
)
def test_every_parent_is_stamped_and_keeps_the_row_that_was_drawn_from(builder, kind):
    rows = {(): [0.5, 0.5, 0.0], (0,): [0.2, 0.3, 0.5], (1,): [0.6, 0.1, 0.3]}

    def run(rng):
        tree = grown(builder, lambda path: rows[path], rng)
        assert set(tree.draw_kind.values()) == {kind}
        assert all(tree.q_of(node).tolist() == rows[tuple(tree.path_tokens(node))] for node in tree.draw_order)
        return len(tree)

    outcomes(run)
