from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoding.pruning import cut, size_for_all, trimmed
from specdec.trees.draft_tree import Draw, TreeSketch, Worth, root_only
from specdec.trees.tree_rules import validate

GAINS = st.lists(st.lists(st.floats(0.01, 0.99), max_size=6), min_size=1, max_size=4)


def seconds(per_token, fixed=1.0):
    return lambda tokens: fixed + per_token * tokens


def tree_of(parents, gains, *, per_token=0.1, spent=0.0, source=()):
    sketch = TreeSketch(7, 3)
    for token, parent in enumerate(parents):
        sketch.add(parent, token)
    worth = Worth((1.0, *gains), seconds(per_token), spent)
    return replace(sketch.freeze(Draw.DETERMINISTIC), worth=worth, source=source)


@given(GAINS, st.floats(0, 0.5), st.floats(0, 1))
def test_the_best_size_has_the_most_tokens_a_second(gains, per_token, spent):
    rows = len(gains)
    cost = seconds(per_token)

    def rate(size):
        expected = rows + sum(sum(sorted(own, reverse=True)[:size]) for own in gains)
        return expected / (cost(rows * (size + 1)) + spent)

    found = size_for_all(gains, rows=rows, seconds_for=cost, spent_seconds=spent)
    assert rate(found) >= max(rate(size) for size in range(8)) - 1e-12


def test_one_confident_row_does_not_widen_the_forward_of_seven_others():
    """Every row is as wide as the widest."""
    sure = [0.9**n for n in range(1, 6)]
    alone = size_for_all([sure], rows=1, seconds_for=seconds(0.1), spent_seconds=0)
    among = size_for_all([sure, *[[]] * 7], rows=8, seconds_for=seconds(0.1), spent_seconds=0)
    assert alone == 5
    assert among == 0


@pytest.mark.parametrize("size", range(5))
def test_a_cut_keeps_the_likeliest_nodes_and_their_parents(size):
    tree = tree_of([0, 0, 1, 2], [0.6, 0.5, 0.1, 0.45], source=(0, 0, 1, 0, 1))
    smaller = cut(tree, tree.worth, size)
    validate(smaller, vocab_size=10)
    kept = {0: [], 1: [0], 2: [0, 1], 3: [0, 1, 3], 4: [0, 1, 2, 3]}[size]
    assert list(smaller.tokens[1:]) == kept
    assert smaller.worth.gains[1:] == tuple(tree.worth.gains[1 + token] for token in kept)
    assert smaller.source[1:] == tuple(tree.source[1 + token] for token in kept)
    assert set(smaller.draw_kind.values()) <= {Draw.DETERMINISTIC}


def test_trees_of_builders_that_weigh_nothing_stay_as_they_are():
    plain = replace(tree_of([0, 1], [0.5, 0.2]), worth=None)
    weighed = tree_of([0, 1], [0.02, 0.01])
    assert trimmed([plain, weighed]) == [plain, weighed]
    assert trimmed([plain]) == [plain]
    root = root_only(7, 3)
    assert trimmed([root]) == [root]


def test_a_row_without_drafts_counts_as_a_row():
    weighed = tree_of([0, 1, 2], [0.9, 0.8, 0.7])
    assert trimmed([weighed])[0].num_drafted == 3
    assert [tree.num_drafted for tree in trimmed([weighed, *[root_only(7, 3)] * 30])] == [0] * 31


def test_what_was_spent_makes_a_larger_size_pay():
    gains = [[0.3, 0.12, 0.1]]
    sizes = [size_for_all(gains, rows=1, seconds_for=seconds(0.1), spent_seconds=spent) for spent in (0.0, 5.0)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(("rows", "size"), list(product([1, 2], [0, 1])))
def test_a_tree_that_is_small_enough_is_the_same_object(rows, size):
    tree = tree_of([0] * size, [0.9] * size, per_token=0.0)
    assert all(one is tree for one in trimmed([tree] * rows))
