"""Rows by depth: which feature they are of, who shares them, and that drafting from them loses nothing."""

import pytest
import torch

from specdec.drafters.medusa import MedusaDrafter, MedusaOptions
from specdec.errors import CheckpointError, TargetMismatch
from specdec.interfaces.declarations import Features, Gives
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import Budget, Distributions, DraftStart, Frontier
from specdec.interfaces.results import Committed
from specdec.sampling.rng import seeded
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.trees.draft_tree import TreeSketch
from specdec.verifiers.block import Block
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.greedy_last import GreedyLast
from specdec.verifiers.k_seq import KSeq
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.optimal_transport import OptimalTransport
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.spec_hub import SpecHub
from specdec.verifiers.traversal import Traversal

HEADS = {"kind": "medusa", "num_heads": 3, "own_lm_head": True}
LAST = Features(last=True)


def tree_of(root, *nodes) -> TreeSketch:
    """nodes: (parent, token)."""
    sketch = TreeSketch(root, 3)
    for parent, token in nodes:
        sketch.add(parent, token)
    return sketch


def test_head_d_answers_all_nodes_of_depth_d_from_the_feature_at_which_the_root_was_drawn(target_of, drafter_of):
    """As triples (text before the root, depth, row): rows are those of the head on the text's own features."""
    target = target_of()
    drafter, _ = drafter_of(target, HEADS)
    head = drafter._drafting.head
    text = [5, 7, 9, 11]

    def expected(depth):
        feature = target.prefill([text[:-1]], LAST).scored[0].hidden.last[-1]
        return head.own_lm_heads[depth](head.heads[depth](feature))

    session = drafter.open([DraftStart(tuple(text[:-1]), text[-1], target.prefill([text[:-1]], LAST).scored[0].hidden)])
    for news in ([4], [8, 2, 6], [1, 1]):
        tree = tree_of(text[-1], (0, 3), (0, 4), (1, 5), (2, 6), (4, 7))
        (answer,) = session.expand([Frontier(tree, tuple(range(6)))])
        for node, row in enumerate(answer.logits):
            torch.testing.assert_close(row, expected(min(tree.depths[node], 2)), rtol=1e-10, atol=1e-10)
        (same,) = session.expand([Frontier(tree, (3, 4))])
        assert torch.equal(same.logits[0], same.logits[1])
        assert torch.equal(same.logits, answer.logits[3:5])
        hidden = target.prefill([[*text, *news]], LAST).scored[0].hidden
        session.observe([Committed(tuple(news), (), hidden.rows(list(range(len(text) - 1, len(text) - 1 + len(news)))))], [])
        text += news


def test_rows_are_computed_once_a_step_for_all_sequences_that_ask(target_of, drafter_of, monkeypatch):
    target = target_of()
    drafter, _ = drafter_of(target, HEADS)
    calls = []
    forward = type(drafter._drafting.head).forward
    monkeypatch.setattr(type(drafter._drafting.head), "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    hidden = target.prefill([[5, 7]], LAST).scored[0].hidden
    session = drafter.open([DraftStart((5, 7), token, hidden) for token in (1, 2, 3)])
    tree = tree_of(1, (0, 3))
    session.expand([Frontier(tree, (0,)), None, Frontier(tree, (0,))])
    session.expand([Frontier(tree, (1,)), None, Frontier(tree, (1,))])
    assert calls == [2]
    session.expand([None, Frontier(tree, (0,)), None])
    assert calls == [2, 1]


def test_no_tree_is_deeper_than_there_are_heads(target_of, drafter_of, decoder_of):
    target = target_of()
    drafter = drafter_of(target, HEADS)
    builders = {
        "fixed": (Fixed, FixedOptions(widths=[2, 1, 1, 1, 1])),
        "sampled": (Sampled, SampledOptions(widths=[2, 1, 1, 1, 1])),
        "chain": (Chain, ChainOptions(length=6)),
        "dynamic": (Dynamic, DynamicOptions(width=2, depth=6, nodes=12)),
    }
    for builder in builders.values():
        depths = []
        decoder = decoder_of(target, drafter, builder, Match)
        list(decoder.stream([5, 7, 9], max_new_tokens=12, step_callback=lambda info, d=depths: d.append(info.tree.max_depth)))
        assert max(depths) == 3


PAIRS = {
    "fixed, point_mass": ((Fixed, FixedOptions(widths=[2, 1])), PointMass),
    "dynamic, match": ((Dynamic, DynamicOptions(width=2, depth=2, nodes=3)), Match),
    "sampled chain, block": ((Chain, ChainOptions(length=2, draw="sampled")), Block),
    "without replacement, multi_round": ((Sampled, SampledOptions(widths=[2, 1])), MultiRound),
    "iid, traversal": ((Sampled, SampledOptions(widths=[2, 1], replacement=True)), Traversal),
    "chains, gbv": ((Chains, ChainsOptions(count=2, length=2)), Gbv),
    "top then one, greedy_last": ((TopThenOne, TopThenOneOptions(widths=[2, 1])), GreedyLast),
    "iid, k_seq": ((Sampled, SampledOptions(widths=[2, 1], replacement=True)), KSeq),
    "iid, optimal_transport": ((Sampled, SampledOptions(widths=[2, 1], replacement=True)), OptimalTransport),
    "pair, spec_hub": ((Pair, PairOptions(depth=1)), SpecHub),
    "coupled, match": ((Coupled, CoupledOptions(widths=[2, 1])), Match),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_drafting_from_rows_by_depth_is_exactly_lossless(proved, pair):
    assert proved(HEADS, *pair).tv <= 1e-12


def test_a_dynamic_tree_of_rows_by_depth_holds_the_likeliest_prefixes_under_their_product():
    """Known answer: rows (.6, .3, .1) and (.7, .2, .1), four nodes of values .6, .42, .3 and .21."""
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]]).log()
    steps = Dynamic(DynamicOptions(width=3, depth=2, nodes=4)).grow(0, 5, Budget(nodes=9, depth=2), seeded(0).draft)
    asked, tree = next(steps), None
    while tree is None:
        depths = [asked.tree.depths[node] for node in asked.nodes]
        try:
            asked = steps.send(Distributions(rows[depths]))
        except StopIteration as stop:
            tree = stop.value
    assert {tuple(tree.path_tokens(node)) for node in range(1, len(tree))} == {(0,), (0, 0), (1,), (1, 0)}


def test_a_folder_declares_its_depth_and_its_sizes_and_another_kind_is_refused(tmp_path, head_of, target_of):
    from specdec.heads.formats.eagle import write_eagle
    from specdec.heads.formats.medusa import write_authors_medusa

    write_authors_medusa(tmp_path / "medusa", head_of(**HEADS), target="t")
    declared = MedusaDrafter.declares(MedusaOptions(head=str(tmp_path / "medusa")))
    assert (declared.gives, declared.features, declared.max_depth) == (Gives.DISTRIBUTIONS, LAST, 3)
    assert declared.made_for == ((32, 48),)
    drafter = MedusaDrafter.build(MedusaOptions(head=str(tmp_path / "medusa")), BuildTools(target=target_of()))
    assert drafter.open([]).expand([]) == []
    with pytest.raises(TargetMismatch, match="reads hidden states 32 wide"):
        MedusaDrafter.build(MedusaOptions(head=str(tmp_path / "medusa")), BuildTools(target=target_of(hidden_size=64)))
    write_eagle(tmp_path / "eagle", head_of(), max_positions=64)
    with pytest.raises(CheckpointError, match="of kind 'eagle'; drafter 'eagle' would work"):
        MedusaDrafter.declares(MedusaOptions(head=str(tmp_path / "eagle")))
    with pytest.raises(CheckpointError, match="no 'medusa' head ships"):
        MedusaDrafter.declares(MedusaOptions(head="builtin"))
