from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.trees.draft_tree import DraftTree, Draw, TreeError, TreeSketch, follow, root_only
from specdec.trees.tree_rules import validate

VOCAB = 50


@st.composite
def sketches(draw):
    sketch = TreeSketch(draw(st.integers(0, VOCAB - 1)), draw(st.integers(0, 1000)))
    taken = set()
    for _ in range(draw(st.integers(0, 25))):
        parent, token = draw(st.integers(0, len(sketch) - 1)), draw(st.integers(0, VOCAB - 1))
        if (parent, token) not in taken:
            taken.add((parent, token))
            sketch.add(parent, token)
    return sketch


def small() -> DraftTree:
    """Root 9 with children 1 and 2, the second of which has child 1."""
    sketch = TreeSketch(9, 5)
    sketch.add(0, 1)
    second = sketch.add(0, 2)
    sketch.add(second, 1)
    return sketch.freeze(Draw.DETERMINISTIC)


@given(sketches())
def test_what_a_sketch_freezes_to_is_valid_and_agrees_with_it(sketch):
    tree = sketch.freeze(Draw.DETERMINISTIC)
    validate(tree, vocab_size=VOCAB)
    assert len(tree) == len(sketch)
    assert tree.num_drafted == len(sketch) - 1
    for node in range(len(tree)):
        assert tree.path_tokens(node) == sketch.path(node)
        assert len(tree.path(node)) == tree.depths[node]
        assert all(tree.parents[child] == node for child in tree.children[node])


@given(sketches())
def test_walking_down_by_tokens_reaches_every_node(sketch):
    tree = sketch.freeze(Draw.DETERMINISTIC)
    for node in range(len(tree)):
        reached = 0
        for token in tree.path_tokens(node):
            reached = tree.child(reached, token)
        assert reached == node


@given(sketches())
def test_a_chain_is_a_tree_without_siblings(sketch):
    tree = sketch.freeze(Draw.DETERMINISTIC)
    assert tree.is_chain == (len(tree) == tree.max_depth + 1)


def test_the_tree_of_plain_decoding_is_its_root():
    tree = root_only(3, 17)
    validate(tree, vocab_size=4)
    assert (len(tree), tree.max_depth, tree.num_drafted, tree.root_position) == (1, 0, 0, 17)
    assert tree.child(0, 3) is None


def test_scouts_are_no_children_to_verify():
    tree = replace(small(), scouts=frozenset({1}))
    assert tree.child(0, 1) is None
    assert tree.child(0, 2) == 2
    validate(replace(tree, draw_order={0: (2,), 2: (3,)}), vocab_size=VOCAB)


def test_q_of_a_node_from_which_nothing_was_drawn_is_an_error():
    with pytest.raises(TreeError, match="node 0 has no draft distribution"):
        small().q_of(0)


BROKEN = {
    "outside the target's vocabulary": {"tokens": (9, 1, 50, 1)},
    "does not come before it": {"parents": (-1, 0, 3, 2)},
    "not one more than its parent's": {"depths": (0, 1, 1, 3)},
    "another child with token": {"tokens": (9, 1, 1, 1)},
    "absent from the children": {"children": ((2,), (1,), (3,), ())},
    "name a node twice": {"children": ((1, 2, 2), (), (3,), ())},
    "node 0 must be the root": {"parents": (0, 0, 0, 2)},
    "differ in length": {"depths": (0, 1, 1)},
    "no kind of draw": {"draw_kind": {0: Draw.DETERMINISTIC}},
    "that are not its children": {"draw_order": {0: (1, 2, 3), 2: (3,)}},
    "only i.i.d. draws may repeat": {"draw_order": {0: (1, 2, 1), 2: (3,)}},
    "are in no draw": {"draw_order": {0: (1,), 2: (3,)}},
    "draw_order names node 7": {"draw_order": {0: (1, 2), 2: (3,), 7: (1,)}},
    "draw_order names node -1": {"draw_order": {0: (1, 2), 2: (3,), -1: ()}},
    "q has 3 columns": {"q": torch.ones(1, 3), "q_row": (0, -1, -1, -1)},
    "names a row outside": {"q": torch.ones(1, VOCAB), "q_row": (1, -1, -1, -1)},
    "q_row has 1 entries": {"q": torch.ones(1, VOCAB), "q_row": (0,)},
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_tree_is_refused_with_its_rule(message):
    with pytest.raises(TreeError, match=message):
        validate(replace(small(), **BROKEN[message]), vocab_size=VOCAB)


def test_iid_draws_may_repeat_a_child():
    tree = replace(small(), draw_order={0: (1, 2, 1), 2: (3,)}, draw_kind={0: Draw.IID, 2: Draw.DETERMINISTIC})
    validate(tree, vocab_size=VOCAB)


def test_a_very_deep_chain_is_validated_without_recursion():
    sketch = TreeSketch(0, 0)
    for node in range(5000):
        sketch.add(node, 1)
    validate(sketch.freeze(Draw.DETERMINISTIC), vocab_size=2)


@given(sketch=sketches(), tokens=st.lists(st.integers(0, VOCAB - 1), max_size=6), data=st.data())
def test_tokens_are_followed_down_the_tree_up_to_the_first_that_it_lacks(sketch, tokens, data):
    tree = sketch.freeze(Draw.DETERMINISTIC)
    tokens = tree.path_tokens(data.draw(st.integers(0, len(tree) - 1))) + tokens
    expected, node = [], 0
    for token in tokens:
        expected.append((node, token))
        node = tree.child(node, token)
        if node is None:
            break
    assert list(follow(sketch, tokens)) == expected
