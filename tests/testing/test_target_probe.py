"""Wrong targets whose fault shows only later, further on, or in a larger call: each is refuted with what it does wrong."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import specdec
from specdec.interfaces.results import Scored
from specdec.targets import runtime
from specdec.targets.tabular import Tabular, TabularTargetOptions
from specdec.testing import CheckFailed, check_target

HISTORY = {"vocab": 5, "random": {"order": 20}}


class Reads(Tabular):
    """Scores each node after the tokens that `context` gives."""

    name = "reads"
    Options = TabularTargetOptions

    def context(self, row, tree, node):
        return [*row.cached, tree.tokens[0], *tree.path_tokens(node)]

    def _score_row(self, row, tree):
        made = super()._score_row(row, tree)
        rows = [self._table.log_probs(self.context(row, tree, node)) for node in range(made.first_node, len(tree))]
        return replace(made, logits=torch.stack(rows)) if rows else made


class LosesATokenFarOn(Reads):
    def context(self, row, tree, node):
        context = super().context(row, tree, node)
        return [*context[:-3], *context[-2:]] if len(context) > 100 else context


class ManyNodes(Reads):
    def context(self, row, tree, node):
        return [*super().context(row, tree, node)[:-1], 0] if node > 16 else super().context(row, tree, node)


class DeepNodes(Reads):
    def context(self, row, tree, node):
        return [*super().context(row, tree, node)[:-1], 0] if tree.depths[node] > 8 else super().context(row, tree, node)


class KeepsRejected(Reads):
    """The first child below the accepted path stays in the cache."""

    def commit(self, state, paths):
        below = [
            [] if path is None else row.tree.children[path[-1] if path else 0][:1]
            for row, path in zip(state.rows, paths, strict=True)
        ]
        tokens = [[row.tree.tokens[node] for node in nodes] for row, nodes in zip(state.rows, below, strict=True)]
        super().commit(state, paths)
        for row, rejected in zip(state.rows, tokens, strict=True):
            row.cached[len(row.cached) - len(rejected) :] = rejected


class ForgetsTheRoot(Reads):
    """Where nothing below it is accepted."""

    def commit(self, state, paths):
        super().commit(state, paths)
        for row, path in zip(state.rows, paths, strict=True):
            if path is not None and not path:
                row.cached[-1] = 0


class AnswersAgain(Reads):
    """A tree that was met before has the logits of then."""

    def __init__(self, options):
        super().__init__(options)
        self.known = {}

    def _score_row(self, row, tree):
        return self.known.setdefault((tree.tokens, tree.parents), super()._score_row(row, tree))


class CopiesShareTheirCache(Reads):
    def fork(self, state, copies):
        made = super().fork(state, copies)
        owners = [row for row, count in zip(state.rows, copies, strict=True) for _ in range(count)]
        for row, owner in zip(made.rows, owners, strict=True):
            row.cached = owner.cached
        return made


class KeepDropsWhatWasScored(Reads):
    def keep(self, state, rows):
        super().keep(state, rows)
        for row in state.rows:
            row.tree = None


class ManyRows(Reads):
    def score(self, state, trees):
        made = super().score(state, trees)
        return [*made[:4], *(Scored(one.logits.roll(1, -1), first_node=one.first_node) for one in made[4:])]


class ThirdExtension(Reads):
    """Sees the root alone above nodes that are added a second time."""

    def _score_row(self, row, tree):
        before = 0 if row.tree is None else len(row.tree)
        made = super()._score_row(row, tree)
        return replace(made, logits=made.logits.roll(1, -1)) if before > 3 and len(made.logits) else made


class ShortPrompts(Reads):
    """A prompt of one token reads the padding of the batch."""

    def prefill(self, prompts, features):
        made = super().prefill(prompts, features)
        for row in made.state.rows:
            row.cached = [0] if len(prompts) > 1 and len(row.cached) == 1 else row.cached
        return made


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (LosesATokenFarOn, r"prompts of 1 to 130 tokens.*row \d, node \d.*look at positions"),
        (ManyNodes, r"trees of up to 40 nodes.*row \d, node \d\d "),
        (DeepNodes, r"trees of up to 40 nodes.*row \d, node \d"),
        (KeepsRejected, r"after a commit it continues from the accepted path: row \d"),
        (ForgetsTheRoot, r"after a commit it continues from the accepted path: row \d"),
        (AnswersAgain, r"after a commit it continues from the accepted path: row \d"),
        (CopiesShareTheirCache, r"copies of a row that `fork` made go their own ways"),
        (KeepDropsWhatWasScored, r"what was scored before `keep` can still be committed"),
        (ManyRows, r"row 4, node 0"),
        (ThirdExtension, r"scored again in a larger one gives its new nodes only: row \d"),
        (ShortPrompts, r"prompts of 1 to 130 tokens.*row [13]"),
    ],
)
def test_a_target_that_is_wrong_only_sometimes_is_refuted(cls, message):
    named = type(cls.__name__, (cls,), {"name": "reads", "Options": TabularTargetOptions})
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_target(named, HISTORY)


def test_the_target_of_which_they_are_variants_passes():
    assert "trees of up to 40 nodes" in str(check_target(Reads, HISTORY))


def test_a_short_context_makes_the_long_prompts_shorter():
    assert "prompts of 1 to 13 tokens" in str(check_target(Tabular, {**HISTORY, "max_positions": 100}))


def test_a_target_without_trees_is_checked_with_chains():
    class Chains(Tabular):
        name = "chains"
        Options = TabularTargetOptions

        @property
        def facts(self):
            return replace(super().facts, trees=False)

    assert check_target(Chains, HISTORY).rules


@pytest.fixture(scope="module")
def half_model():
    """Rows of a spread as a trained model's, from random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_passes_and_one_with_wrong_positions_does_not(half_model, dtype, monkeypatch, tmp_path):
    half_model.to(dtype).save_pretrained(tmp_path)
    part = {"use": "huggingface", "model": str(tmp_path), "dtype": str(dtype).removeprefix("torch."), "device": "cpu"}
    target = specdec.load("plain", target=part).target
    assert "trees of up to 40 nodes" in str(check_target(target))
    late = runtime.tree_positions
    monkeypatch.setattr(runtime, "tree_positions", lambda rows, nodes: [[at + 1 for at in row] for row in late(rows, nodes)])
    with pytest.raises(CheckFailed, match=r"differ from those of reading that path alone by \d\.\d+ of their spread"):
        check_target(target)
