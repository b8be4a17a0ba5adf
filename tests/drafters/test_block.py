"""One-pass drafting: which context and which last token a row is of, in batches too, and that nothing is lost by it."""

import pytest
import torch

from specdec.drafters.block import BlockDrafter, BlockOptions
from specdec.errors import CheckpointError, TargetMismatch
from specdec.heads.block import KeysValues
from specdec.heads.block_session import block_mask
from specdec.heads.formats.dflash import write_dflash
from specdec.interfaces.declarations import Features, Gives
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import TreeSketch
from specdec.verifiers.block import Block
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.traversal import Traversal

LAYERS = (1, 3)
DFLASH = {"kind": "block", "layers": LAYERS, "block_size": 4, "mask_token_id": 47, "num_layers": 2}
KINDS = {
    "dflash": DFLASH,
    "jetspec": {**DFLASH, "causal": True},
    "dspark": {**DFLASH, "from_anchor": True, "markov_rank": 5, "draft_vocab_size": 20},
}
READ = Features(layers=LAYERS)


def tree_of(root, *nodes) -> TreeSketch:
    sketch = TreeSketch(root, 3)
    for parent, token in nodes:
        sketch.add(parent, token)
    return sketch


def from_scratch(drafting, target, text, node_token, depth) -> torch.Tensor:
    """The row of a depth after a text, by the modules alone: all context at once, no cache."""
    head, config = drafting.head, drafting.head.config
    features = target.prefill([text[:-1]], READ).scored[0].hidden.layers
    known = head.context_keys_values(head.context(features[None]), torch.arange(len(features))[None])
    ids = torch.tensor([text[-1], *[config.mask_token_id] * (config.block_size - 1)])
    size, start = config.block_size, len(features)
    mask = block_mask([start], size, slots=start + size, causal=config.causal)
    bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))

    def seen(layer, own):
        return KeysValues(torch.cat((known[layer].keys, own.keys), 2), torch.cat((known[layer].values, own.values), 2))

    states = head(target.embed(ids)[None], torch.arange(start, start + size)[None], bias, seen)
    row = depth if config.from_anchor else depth + 1
    logits = drafting.lm_head(head.lm_head_states(states[0, row : row + 1]))[0]
    return logits if head.markov_head is None else logits + head.markov_head(torch.tensor([node_token]))[0]


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def made(request, target_of, drafter_of):
    target = target_of()
    return target, drafter_of(target, request.param)[0]


def starts(target, *texts):
    hidden = [target.prefill([text[:-1]], READ).scored[0].hidden for text in texts]
    return [DraftStart(tuple(text[:-1]), text[-1], states) for text, states in zip(texts, hidden, strict=True)]


def news_of(target, text, news):
    hidden = target.prefill([[*text, *news]], READ).scored[0].hidden
    return Committed(tuple(news), (), hidden.rows(list(range(len(text) - 1, len(text) - 1 + len(news)))))


def check(drafting, target, text, answer, tree, nodes):
    for row, node in zip(answer.logits, nodes, strict=True):
        depth = min(tree.depths[node], drafting.head.config.depths - 1)
        expected = from_scratch(drafting, target, text, tree.tokens[node], depth)
        torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-10)


@torch.inference_mode()
def test_every_row_is_of_the_whole_text_its_last_token_and_its_depth_step_after_step(made):
    target, drafter = made
    text = [5, 7, 9, 11]
    session = drafter.open(starts(target, text))
    for news in ([4], [8, 2, 6], [1, 1]):
        tree = tree_of(text[-1], (0, 3), (0, 4), (1, 5), (2, 6), (4, 7))
        (answer,) = session.expand([Frontier(tree, tuple(range(6)))])
        check(drafter._drafting, target, text, answer, tree, range(6))
        session.observe([news_of(target, text, news)], [])
        text += news
        session.cache.check_integrity()


@torch.inference_mode()
def test_rows_of_a_batch_are_those_of_each_text_alone_when_others_leave_and_join(made):
    target, drafter = made
    texts = [[5, 7, 9, 11], [3, 2], [8, 8, 1, 40, 12, 6]]
    session = drafter.open(starts(target, *texts))
    session.observe([news_of(target, text, [4, 4][: n + 1]) for n, text in zip((0, 1, 0), texts, strict=True)], [])
    texts = [[*text, *[4, 4][: n + 1]] for n, text in zip((0, 1, 0), texts, strict=True)]
    session.keep([0, 2])
    session.join(drafter.open(starts(target, [30, 31, 32])))
    texts = [texts[0], texts[2], [30, 31, 32]]
    trees = [tree_of(text[-1], (0, 3), (1, 5)) for text in texts]
    answers = session.expand([Frontier(tree, (0, 1, 2)) for tree in trees])
    for text, tree, answer in zip(texts, trees, answers, strict=True):
        check(drafter._drafting, target, text, answer, tree, range(3))


@torch.inference_mode()
def test_context_that_nobody_asks_about_is_fed_before_it_piles_up(made):
    target, drafter = made
    text = [5, 7, 9]
    session = drafter.open(starts(target, text))
    for token in range(40):
        session.observe([news_of(target, text, [token, token])], [])
        text += [token, token]
    assert sum(map(len, session._pending[0])) <= 64
    tree = tree_of(text[-1], (0, 3))
    (answer,) = session.expand([Frontier(tree, (0, 1))])
    check(drafter._drafting, target, text, answer, tree, range(2))


def test_a_pass_is_made_once_a_step_however_deep_the_tree(target_of, drafter_of, monkeypatch):
    target = target_of()
    drafter, _ = drafter_of(target, DFLASH)
    calls, rows = [], type(drafter._drafting).rows
    monkeypatch.setattr(type(drafter._drafting), "rows", lambda *args: calls.append(1) or rows(*args))
    session = drafter.open(starts(target, [5, 7]))
    tree = tree_of(7, (0, 3), (1, 4), (2, 5))
    for node in range(4):
        session.expand([Frontier(tree, (node,))])
    assert calls == [1]


PAIRS = {
    "dynamic, match": ((Dynamic, DynamicOptions(width=2, depth=2, nodes=3)), Match),
    "sampled chain, block": ((Chain, ChainOptions(length=2, draw="sampled")), Block),
    "without replacement, multi_round": ((Sampled, SampledOptions(widths=[2, 1])), MultiRound),
    "iid, traversal": ((Sampled, SampledOptions(widths=[2, 1], replacement=True)), Traversal),
    "coupled, match": ((Coupled, CoupledOptions(widths=[2, 1])), Match),
}


@pytest.mark.parametrize("changes", [{}, {"from_anchor": True, "markov_rank": 5}], ids=["dflash", "dspark"])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_drafting_from_a_block_is_exactly_lossless(proved, pair, changes):
    assert proved({**DFLASH, "mask_token_id": 2, **changes}, *pair).tv <= 1e-12


def test_a_folder_in_dflashs_layout_declares_layers_and_depth(tmp_path, head_of, target_of):
    write_dflash(tmp_path / "dflash", head_of(**DFLASH), max_positions=96)
    options = BlockOptions(head=str(tmp_path / "dflash"))
    declared = BlockDrafter.declares(options)
    assert (declared.gives, declared.features, declared.max_depth) == (Gives.DISTRIBUTIONS, READ, 3)
    assert BlockDrafter.build(options, BuildTools(target=target_of())).open([]).expand([]) == []
    with pytest.raises(TargetMismatch, match="64 wide"):
        BlockDrafter.build(options, BuildTools(target=target_of(hidden_size=64)))
    with pytest.raises(CheckpointError, match="not in the hub's local cache"):
        BlockDrafter.declares(BlockOptions(head="org/no-such-head"))
