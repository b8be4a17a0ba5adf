"""Rows by node: of which feature and tokens, the prefix layer's cache, and that drafting from them loses nothing."""

import pytest
import torch

from specdec.drafters.hydra import HydraDrafter, HydraOptions
from specdec.drafters.medusa import MedusaDrafter, MedusaOptions
from specdec.errors import CheckpointError
from specdec.heads import prefix_cache
from specdec.heads.config import LayerConfig
from specdec.heads.formats.hydra import write_hydra
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import TreeSketch
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.traversal import Traversal

LAYER = LayerConfig(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
HEADS = {"kind": "hydra", "num_heads": 3, "embedding_scale": 2.0, "own_lm_head": True}
KINDS = {"mlp": HEADS, "prefix-mlp": {**HEADS, "prefix": LAYER}}
PROMPTS = [[5, 7, 9, 11], [3, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]]
LAST = Features(last=True)


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request):
    return request.param


class Life:
    """Sequences whose rows are compared with those of the head's modules, from the text alone."""

    def __init__(self, target, drafter, texts):
        self.target, self.drafting = target, drafter._drafting
        self.texts = [list(text) for text in texts]
        self.session = drafter.open([DraftStart(tuple(t[:-1]), t[-1], self.hidden(t[:-1])) for t in self.texts])

    def hidden(self, text):
        return self.target.prefill([text], LAST).scored[0].hidden

    def expected(self, text, path):
        """(text before the root, tokens down to the node): the row of the head of that depth."""
        head, depth = self.drafting.head, min(len(path), 2)
        features = self.hidden(text[:-1]).last[None]
        state = head.read_features(features, torch.arange(features.shape[1])[None])[0, -1]
        tokens = self.target.embed(torch.tensor([text[-1], *path][: depth + 1]))
        return head.own_lm_heads[depth](head(depth, state, tokens))

    def check(self, asks):
        frontiers = []
        for text, asked in zip(self.texts, asks, strict=True):
            tree = TreeSketch(text[-1], len(text) - 1)
            for parent, token in ((0, 3), (0, 4), (1, 5), (2, 6), (4, 7)):
                tree.add(parent, token)
            frontiers.append(None if asked is None else Frontier(tree, asked))
        for text, frontier, answer in zip(self.texts, frontiers, self.session.expand(frontiers), strict=True):
            assert (frontier is None) == (answer is None)
            for node, row in zip(frontier.nodes, answer.logits, strict=True) if frontier else ():
                torch.testing.assert_close(row, self.expected(text, frontier.tree.path(node)), rtol=1e-6, atol=1e-6)

    def commit(self, news):
        committed = []
        for text, tokens in zip(self.texts, news, strict=True):
            rows = list(range(len(text) - 1, len(text) - 1 + len(tokens)))
            text += tokens
            committed.append(Committed(tuple(tokens), (), self.hidden(text).rows(rows)))
        self.session.observe(committed, [])


def test_every_row_is_that_of_recomputation_in_a_batch_that_grows_and_shrinks(target_of, drafter_of, kind, monkeypatch):
    monkeypatch.setattr(prefix_cache, "CHUNK", 4)
    target = target_of()
    drafter, _ = drafter_of(target, kind)
    life = Life(target, drafter, PROMPTS)
    life.check([(0, 1, 2), (0,), None])
    life.check([(3, 5, 4), None, (5, 0, 2)])
    life.commit([[4], [8, 2, 6], [1, 1]])
    life.commit([[9, 9], [7], [2]])
    life.check([tuple(range(6)), None, (2,)])
    late = Life(target, drafter, [[6, 6, 6, 2, 1]])
    late.commit([[3, 3]])
    life.commit([[1], [2, 3], [4]])
    life.session.keep([1, 2])
    life.session.join(late.session)
    life.texts = [*life.texts[1:], *late.texts]
    life.check([(0, 4), (1, 5), (0, 2, 5)])
    life.commit([[1], [2, 3], [4]])
    life.check([(0, 4), (1, 5), (0, 2, 5)])


def test_the_prefix_layers_cache_holds_the_committed_features_and_nothing_else(target_of, drafter_of):
    target = target_of()
    drafter, _ = drafter_of(target, KINDS["prefix-mlp"])
    life = Life(target, drafter, PROMPTS[:2])
    life.commit([[4], [8, 2, 6]])
    life.check([(0, 5), (1,)])
    cache = life.session._prefix.cache
    cache.check_integrity()
    assert cache.lengths == [len(text) - 1 for text in life.texts]


PAIRS = {
    "dynamic, point_mass": ((Dynamic, DynamicOptions(width=2, depth=2, nodes=3)), PointMass),
    "without replacement, multi_round": ((Sampled, SampledOptions(widths=[2, 1])), MultiRound),
    "iid, traversal": ((Sampled, SampledOptions(widths=[2, 1], replacement=True)), Traversal),
    "coupled, match": ((Coupled, CoupledOptions(widths=[2, 1])), Match),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_drafting_from_rows_by_path_is_exactly_lossless(proved, pair):
    assert proved(HEADS, *pair).tv <= 1e-12


@pytest.mark.parametrize("changes", [HEADS, {**KINDS["prefix-mlp"], "max_positions": 96}])
def test_a_folder_as_published_declares_its_depth_and_drafts(tmp_path, head_of, target_of, changes):
    write_hydra(tmp_path / "hydra", head_of(**changes), target="t")
    options = HydraOptions(head=str(tmp_path / "hydra"))
    declared = HydraDrafter.declares(options)
    assert (declared.features, declared.max_depth, declared.made_for) == (LAST, 3, ((32, 48),))
    target = target_of()
    session = HydraDrafter.build(options, BuildTools(target=target)).open(
        [DraftStart((5, 7), 9, target.prefill([[5, 7]], LAST).scored[0].hidden)]
    )
    assert session.expand([Frontier(TreeSketch(9, 2), (0,))])[0].logits.shape == (1, 48)
    with pytest.raises(CheckpointError, match="of kind 'hydra'; drafter 'hydra' would work"):
        MedusaDrafter.declares(MedusaOptions(head=str(tmp_path / "hydra")))
