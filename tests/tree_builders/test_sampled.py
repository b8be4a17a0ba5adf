import itertools
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Gives, Shape
from specdec.interfaces.parts import BuildTools
from specdec.sampling.enumeration import outcomes
from specdec.sampling.rng import seeded
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw

TREES = Path(__file__).parents[2] / "trees"
TOOLS = BuildTools(find_tree=lambda name: TREES / f"{name}.yaml")


def sampled(**options):
    return Sampled.build(SampledOptions(**options), TOOLS)


def signature(tree):
    """Parent path -> tokens in draw order, repeats kept."""
    return tuple(
        sorted((tuple(tree.path_tokens(n)), tuple(tree.tokens[c] for c in children)) for n, children in tree.draw_order.items())
    )


def ordered_draw_probability(row, tokens, *, replacement):
    """The distribution of draws in order, written down from its definition."""
    left, probability = list(row), 1.0
    for token in tokens:
        probability *= left[token] / sum(left)
        if not replacement:
            left[token] = 0.0
    return probability


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_siblings_given_all_draws_above_follow_their_parents_q(growth, random_rows, replacement, zeros):
    distribution = random_rows(3, 11, zeros=zeros)
    builder = sampled(widths=[2, 2], replacement=replacement)

    def run(rng):
        return signature(growth(distribution, 3)(builder, answer="probs", rng=rng.draft))

    for tree, weight in outcomes(run).items():
        expected = 1.0
        for path, tokens in tree:
            expected *= ordered_draw_probability(distribution(path), tokens, replacement=replacement)
        assert weight == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("replacement", [False, True])
def test_q_rows_are_kept_bit_by_bit_and_stamped(growth, random_rows, replacement):
    distribution = random_rows(6, 12)
    for seed in range(20):
        tree = growth(distribution, 6)(
            sampled(file="binary-3", replacement=replacement), answer="probs", rng=seeded(seed).draft
        )
        assert tree.q.dtype == torch.float64
        for node in range(len(tree)):
            drawn = node in tree.draw_order
            assert drawn == (tree.q_row[node] >= 0)
            if drawn:
                assert tree.q_of(node).tolist() == distribution(tuple(tree.path_tokens(node)))
                assert tree.draw_kind[node] is (Draw.IID if replacement else Draw.WITHOUT_REPLACEMENT)


def test_the_r_th_draw_takes_the_subtree_of_rank_r_and_a_repeat_keeps_the_first_ones(growth, random_rows):
    distribution = random_rows(2, 13)
    builder = sampled(paths=[[0], [1], [2], [0, 0], [1, 0], [1, 1], [2, 0]], replacement=True)
    wanted = {0: 1, 1: 2, 2: 1}
    for seed in range(40):
        tree = growth(distribution, 2)(builder, answer="probs", rng=seeded(seed).draft)
        top = tree.draw_order[0]
        assert len(top) == 3
        assert len(set(top)) == len(tree.children[0]) <= 2
        for child in set(top):
            assert len(tree.draw_order[child]) == wanted[top.index(child)]


def test_without_replacement_the_support_may_be_exhausted(growth, table_rows):
    distribution = table_rows({(): [0.5, 0.5, 0.0, 0.0], (0,): [0, 0, 0, 1.0], (1,): [0, 0, 1.0, 0]})
    tree = growth(distribution, 4)(sampled(widths=[3, 2]), answer="probs")
    assert {tuple(tree.path_tokens(n)) for n in range(1, len(tree))} == {(0,), (1,), (0, 3), (1, 2)}


@pytest.mark.parametrize("replacement", [False, True])
def test_a_row_without_mass_draws_nothing(growth, replacement):
    tree = growth(lambda path: [0.0, 0.0] if path else [0.0, 1.0], 2)(
        sampled(widths=[2, 2], replacement=replacement), answer="probs"
    )
    assert tree.tokens[1:] == (1,)
    assert tree.q_row == (0, -1)
    empty = growth(lambda path: [0.0, 0.0], 2)(sampled(widths=[2], replacement=replacement), answer="probs")
    assert (empty.num_drafted, empty.q) == (0, None)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("nodes", "depth"), [(0, 3), (3, 0), (5, 3), (50, 1), (1, 1), (50, 50)])
def test_the_number_of_draws_depends_on_position_and_budget_alone(growth, random_rows, replacement, nodes, depth):
    builder = sampled(widths=[3, 2, 1], replacement=replacement)
    counts = builder._shape.cut(nodes=nodes, depth=depth).child_counts()
    for seed in range(10):
        tree = growth(random_rows(4, seed), 4)(builder, nodes=nodes, depth=depth, answer="probs", rng=seeded(seed).draft)
        assert tree.num_drafted <= nodes
        assert tree.max_depth <= depth
        position = {0: ()}
        for node, children in sorted(tree.draw_order.items()):
            assert len(children) == counts[position[node]]
            for rank, child in reversed(list(enumerate(children))):
                position[child] = (*position[node], rank)


def test_nothing_is_drawn_below_a_stop_token_which_is_itself_kept(growth, random_rows):
    distribution = random_rows(3, 14)

    def run(rng):
        tree = growth(distribution, 3)(sampled(widths=[2, 1]), answer="probs", rng=rng.draft, stop_ids=frozenset({1}))
        assert all(1 not in tree.path_tokens(node)[:-1] for node in range(len(tree)))
        return signature(tree)[0]

    distribution_of_first = outcomes(run)
    for first, second in itertools.permutations(range(3), 2):
        expected = ordered_draw_probability(distribution(()), (first, second), replacement=False)
        assert distribution_of_first[(), (first, second)] == pytest.approx(expected, abs=1e-14)


def test_declarations_follow_the_options():
    tree = Sampled.declares(SampledOptions(widths=[2, 2]))
    assert (tree.draw, tree.shape, tree.max_nodes) == (Draw.WITHOUT_REPLACEMENT, Shape.TREE, 6)
    assert (tree.needs, tree.prunes_on_draws) == (frozenset({Gives.DISTRIBUTIONS}), False)
    chain = Sampled.declares(SampledOptions(widths=[1, 1], replacement=True))
    assert (chain.draw, chain.shape) == (Draw.IID, Shape.CHAIN)


def test_logits_are_refused_and_so_are_options_without_a_shape(growth, random_rows):
    with pytest.raises(SpecdecError, match="received logits"):
        growth(random_rows(3, 0), 3)(sampled(widths=[2]))
    with pytest.raises(ValidationError, match="exactly one"):
        SampledOptions(replacement=True)
