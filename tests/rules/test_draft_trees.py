"""Every node of a draft tree is scored as its own path, and a malformed tree is refused."""

import random
from dataclasses import replace

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.declarations import Features
from specdec.nn.tree_mask import RowNodes, additive, tree_mask, tree_positions
from specdec.sampling.distribution import draft_probs
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw, TreeError, TreeSketch, root_only
from specdec.trees.tree_rules import validate
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

PREFIX = [5 + 3 * n % 50 for n in range(11)]


def named_tree(position):
    """Root, its children a and b, a's child c, b's children d and e."""
    sketch = TreeSketch(7, position)
    a, b = sketch.add(0, 8), sketch.add(0, 9)
    sketch.add(a, 10)
    sketch.add(b, 11)
    sketch.add(b, 12)
    return sketch.freeze(Draw.DETERMINISTIC)


def random_tree(position, seed):
    source = random.Random(seed)
    sketch = TreeSketch(7, position)
    for token in range(1, source.randrange(2, 13)):
        sketch.add(source.randrange(len(sketch)), 7 + token)
    return sketch.freeze(Draw.DETERMINISTIC)


def difference(target, logits_of, tree):
    """Between the tree's logits and those of a plain forward over each root-to-node path."""
    state = target.prefill([PREFIX], Features()).state
    found = target.score(state, [tree])[0].logits.double()
    paths = [logits_of([*PREFIX, tree.tokens[0], *tree.path_tokens(node)]).double() for node in range(len(tree))]
    return (found - torch.stack(paths)).abs().max()


def test_siblings_stand_side_by_side():
    tree = named_tree(11)
    rows = [RowNodes(11, tree.parents, tree.depths)]
    assert tree_positions(rows, 6) == [[11, 12, 12, 13, 13, 13]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_node_is_scored_as_its_own_path(tiny, kind, attention):
    tolerance = {"sdpa": 1e-9, "eager": 1e-5}[attention]  # transformers' eager softmax is one of float32
    target, logits_of = tiny(kind, attention=attention)
    assert difference(target, logits_of, named_tree(len(PREFIX))) <= tolerance
    for seed in range(5):
        assert difference(target, logits_of, random_tree(len(PREFIX), seed)) <= tolerance


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.25)])
def test_every_node_is_scored_as_its_own_path_in_lower_precision(tiny, kind, attention, dtype, tolerance):
    target, logits_of = tiny(kind, attention=attention, dtype=dtype)
    assert difference(target, logits_of, named_tree(len(PREFIX))) <= tolerance


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_token_in_a_sibling_changes_no_other_nodes_logits(tiny, kind, attention, dtype):
    target, _ = tiny(kind, attention=attention, dtype=dtype)
    tree = named_tree(len(PREFIX))
    other = replace(tree, tokens=(7, 8, 9, 10, 30, 12))
    scores = [target.score(target.prefill([PREFIX], Features()).state, [t])[0].logits for t in (tree, other)]
    assert torch.equal(scores[0][[0, 1, 2, 3, 5]], scores[1][[0, 1, 2, 3, 5]])
    assert not torch.equal(scores[0][4], scores[1][4])


def test_the_mask_as_booleans_and_as_a_bias_means_the_same():
    tree = named_tree(3)
    mask = tree_mask([RowNodes(3, tree.parents, tree.depths)], nodes=6, slots=9)
    scores = torch.randn(1, 1, 6, 9, generator=torch.Generator().manual_seed(0))
    biased = (scores + additive(mask, torch.float32, torch.device("cpu"))).softmax(-1)
    assert torch.equal(biased, scores.masked_fill(~mask, float("-inf")).softmax(-1))
    assert mask[0, 0, 4].tolist() == [True] * 3 + [True, False, True, False, True, False]


GOOD = named_tree(3)
MALFORMED = {
    "missing parent": ({"parents": (-1, 0, 0, 99, 2, 2)}, "node 3: parent 99"),
    "cycle": ({"parents": (-1, 3, 0, 1, 2, 2)}, "node 1: parent 3"),
    "own parent": ({"parents": (-1, 1, 0, 1, 2, 2)}, "node 1: parent 1"),
    "child before parent": ({"parents": (-1, 2, 0, 1, 2, 2)}, "node 1: parent 2"),
    "duplicate sibling": ({"tokens": (7, 8, 8, 10, 11, 12)}, "node 2: .* another child with token 8"),
    "wrong depth": ({"depths": (0, 1, 1, 3, 2, 2)}, "node 3: depth 3"),
    "token outside the vocabulary": ({"tokens": (7, 8, 9, 99, 11, 12)}, "node 3: token 99"),
    "negative token": ({"tokens": (7, 8, -1, 10, 11, 12)}, "node 2: token -1"),
    "second root": ({"parents": (-1, 0, -1, 1, 2, 2)}, "node 2: parent -1"),
    "rooted elsewhere": ({"parents": (0, 0, 0, 1, 2, 2)}, "node 0"),
    "unlisted child": ({"children": ((1,), (3,), (4, 5), (), (), ())}, "node 2: absent"),
    "child listed twice": ({"children": ((1, 2, 2), (3,), (4, 5), (), (), ())}, "twice"),
    "lengths differ": ({"depths": (0, 1)}, "differ in length"),
    "no nodes": ({"tokens": (), "parents": (), "depths": (), "children": (), "draw_order": {}, "draw_kind": {}}, "0 nodes"),
    "undrawn child": ({"draw_order": {0: (1, 2), 1: (3,), 2: (4,)}}, r"node 2: children \[5\] are in no draw"),
    "drawn stranger": ({"draw_order": {0: (1, 2, 3), 1: (3,), 2: (4, 5)}}, "node 0: draw_order names nodes"),
    "repeat without i.i.d.": ({"draw_order": {0: (1, 2, 1), 1: (3,), 2: (4, 5)}}, "node 0: only i.i.d."),
    "draw without kind": ({"draw_kind": {0: Draw.DETERMINISTIC}}, "node 1: its children carry no kind"),
}


@pytest.mark.parametrize(("change", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_tree_is_refused_and_the_node_is_named(change, message):
    validate(GOOD, vocab_size=64)
    with pytest.raises(TreeError, match=message):
        validate(replace(GOOD, **change), vocab_size=64)


def test_a_tree_of_any_depth_is_checked_without_recursion():
    sketch = TreeSketch(0, 0)
    for node in range(5000):
        sketch.add(node, node % 7)
    validate(sketch.freeze(Draw.DETERMINISTIC), vocab_size=7)


SMALL = TabularDrafterOptions(vocab=4, rows={"*": [0.4, 0.3, 0.2, 0.1]}, target_ids=(3, 9, 0, 15))
WIDE = {
    "fixed": (Fixed, FixedOptions(widths=[6, 6]), Match),
    "dynamic": (Dynamic, DynamicOptions(width=6, depth=3, nodes=4096), Match),
    "wor": (Sampled, SampledOptions(widths=[6, 2]), MultiRound),
    "iid": (Sampled, SampledOptions(widths=[6, 2], replacement=True), MultiRound),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_drafter_of_fewer_tokens_than_children_gives_each_of_its_tokens_once(compose, table, parts_of, watched, name):
    target = watched(table(16, seed=1))
    sampling = SamplingParams(temperature=1.0, top_k=8)
    decoder = compose(target, parts_of(*WIDE[name]), SMALL, sampling=sampling)
    run = decoder.start([Request((1,), max_new_tokens=5)])
    decoder.step(run)
    [[tree]] = target.trees
    for children in tree.children:
        tokens = [tree.tokens[child] for child in children]
        assert len(tokens) == len(set(tokens)) <= 4
        assert set(tokens) <= {3, 9, 0, 15}
    assert len(tree.children[0]) == 4 if name != "iid" else len(tree.draw_order[0]) == 6
    if tree.q is not None:
        assert tree.q.sum(-1) == pytest.approx(torch.ones(len(tree.q)))


def test_top_k_beyond_the_drafters_vocabulary_keeps_all_of_it():
    logits = torch.tensor([SMALL.rows["*"]], dtype=torch.float64).log()
    q = draft_probs(logits, torch.tensor(SMALL.target_ids), 16, SamplingParams(top_k=8).draft_truncation)[0]
    assert {int(i): pytest.approx(float(q[i])) for i in q.nonzero()} == {3: 0.4, 9: 0.3, 0: 0.2, 15: 0.1}


def test_impossible_tokens_are_never_drafted(compose, table, parts_of, watched):
    target = watched(table(4, seed=1))
    drafter = TabularDrafterOptions(vocab=4, rows={"*": [0.5, 0, 0.5, 0]})
    for builder, options, verifier in WIDE.values():
        compose(target, parts_of(builder, options, verifier), drafter).generate([[1]], max_new_tokens=6)
    trees = [tree for trees in target.trees for tree in trees]
    assert {token for tree in trees for token in tree.tokens[1:]} == {0, 2}
    assert max(len(children) for tree in trees for children in tree.children) == 2


def test_the_plain_tree_has_a_root_only():
    validate(root_only(3, 9), vocab_size=4)
    assert root_only(3, 9).num_drafted == 0
