from pathlib import Path

import pytest
from pydantic import ValidationError

from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.declarations import Gives, Shape
from specdec.interfaces.parts import BuildTools
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import Draw

TREES = Path(__file__).parents[2] / "trees"
TOOLS = BuildTools(find_tree=lambda name: TREES / f"{name}.yaml")


def fixed(**options):
    return Fixed.build(FixedOptions(**options), TOOLS)


def naive_tree(distribution, paths, vocab_size):
    """Each path of ranks, spelt out token by token."""

    def spelt(path):
        tokens = []
        for rank in path:
            row = distribution(tuple(tokens))
            order = sorted((token for token in range(vocab_size) if row[token] > 0), key=lambda token: (-row[token], token))
            if rank >= len(order):
                return None
            tokens.append(order[rank])
        return tuple(tokens)

    return {spelt(path) for path in paths} - {None}


def drafted(tree):
    return {tuple(tree.path_tokens(node)) for node in range(1, len(tree))}


@pytest.mark.parametrize("name", ["eagle-25", "eagle-16", "binary-3", "wide-4x2x1", "medusa-63", "chain-5"])
@pytest.mark.parametrize("answer", ["distributions", "candidates"])
def test_the_tree_is_the_shape_spelt_out_in_the_drafters_ranks(growth, random_rows, name, answer):
    builder = fixed(file=name)
    distribution = random_rows(12, 3)
    tree = growth(distribution, 12)(builder, answer=answer)
    assert drafted(tree) == naive_tree(distribution, builder._shape.paths, 12)
    assert tree.num_drafted == builder._shape.num_nodes
    assert set(tree.draw_kind.values()) == {Draw.DETERMINISTIC}


@pytest.mark.parametrize("zeros", [0.3, 0.8])
def test_impossible_tokens_and_missing_candidates_leave_their_subtrees_out(growth, random_rows, zeros):
    builder = fixed(file="eagle-25")
    for seed in range(10):
        distribution = random_rows(4, seed, zeros=zeros)
        assert drafted(growth(distribution, 4)(builder)) == naive_tree(distribution, builder._shape.paths, 4)


def test_equal_logits_go_to_the_lower_token(growth, random_rows):
    builder = fixed(file="eagle-25")
    for seed in range(10):
        distribution = random_rows(10, seed, levels=2)
        assert drafted(growth(distribution, 10)(builder)) == naive_tree(distribution, builder._shape.paths, 10)


@pytest.mark.parametrize(("nodes", "depth"), [(0, 5), (5, 0), (7, 5), (100, 2), (3, 1)])
def test_a_small_budget_keeps_the_first_paths(growth, random_rows, nodes, depth):
    builder = fixed(file="medusa-63")
    distribution = random_rows(12, 4)
    grow = growth(distribution, 12)
    tree = grow(builder, nodes=nodes, depth=depth)
    assert drafted(tree) == naive_tree(distribution, builder._shape.cut(nodes=nodes, depth=depth).paths, 12)
    assert len(grow.asked) == tree.max_depth


def test_nothing_is_drafted_below_a_stop_token(growth, random_rows):
    distribution = random_rows(6, 5)
    tree = growth(distribution, 6)(fixed(widths=[3, 2, 2]), stop_ids=frozenset({0, 1, 2}))
    full = naive_tree(distribution, fixed(widths=[3, 2, 2])._shape.paths, 6)
    assert drafted(tree) == {path for path in full if not {0, 1, 2} & set(path[:-1])}


def test_the_shape_may_stand_in_the_options():
    assert fixed(widths=[2, 1])._shape == fixed(paths=[[0], [1], [0, 0], [1, 0]])._shape


def test_a_chain_shape_is_declared_as_a_chain():
    assert Fixed.declares(FixedOptions(file=str(TREES / "chain-5.yaml"))).shape is Shape.CHAIN
    assert Fixed.declares(FixedOptions(widths=[1, 1])).shape is Shape.CHAIN
    made = Fixed.declares(FixedOptions(file=str(TREES / "eagle-25.yaml")))
    assert (made.shape, made.max_nodes, made.max_depth, made.needs) == (Shape.TREE, 25, 5, frozenset(Gives))
    assert Fixed.declares(FixedOptions(file="a-name")).shape is Shape.TREE


def test_whoever_validates_the_options_may_bring_a_way_to_find_trees():
    found = FixedOptions.model_validate({"file": "chain-3"}, context={"find_tree": TOOLS.find_tree})
    assert Fixed.declares(found).shape is Shape.CHAIN

    def nowhere(name):
        raise SpecError(f"no tree {name}")

    with pytest.raises(ValidationError, match="no tree chain-4"):
        FixedOptions.model_validate({"file": "chain-4"}, context={"find_tree": nowhere})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of file, paths and widths; got none"),
        ({"widths": [2], "paths": [[0]]}, "exactly one"),
        ({"widths": [0]}, "greater than or equal to 1"),
        ({"widths": []}, "at least 1 item"),
        ({"paths": [[1]]}, r"path \[1\]: its sibling"),
        ({"widths": [2], "depth": 3}, "Extra inputs"),
    ],
)
def test_options_that_give_no_shape_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        FixedOptions(**options)


def test_a_warped_q_is_refused(growth, random_rows):
    with pytest.raises(SpecdecError, match="received a warped q"):
        growth(random_rows(3, 0), 3)(fixed(widths=[2]), answer="probs")
