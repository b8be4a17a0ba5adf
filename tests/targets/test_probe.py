from dataclasses import replace

import pytest
import torch

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.capability import Limits, MaskPlan
from specdec.targets.model_call import ModelCall
from specdec.targets.probe import BRANCHING, probed, tree_fault
from specdec.targets.runtime import TransformerRuntime
from specdec.trees.draft_tree import Draw, TreeSketch, root_only

GOOD = ["llama", "gpt2", "mixtral", "qwen3_moe", "mistral", "gemma3"]


def chain(tokens, position):
    sketch = TreeSketch(tokens[0], position)
    for token in tokens[1:]:
        sketch.add(len(sketch) - 1, token)
    return sketch.freeze(Draw.DETERMINISTIC)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", GOOD)
def test_models_that_honour_masks_may_score_trees(kind, dtype, make_runtime):
    _, facts = make_runtime(kind, dtype=dtype, probe=True)
    assert facts.trees


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_probe_alone_finds_that_alibi_counts_slots(dtype, make_model):
    runtime = probed(
        TransformerRuntime(ModelCall(make_model("bloom", dtype)), MaskPlan({"all": None}, False), Limits(None, 512))
    )
    assert runtime.limits.no_trees_because is not None


def test_a_window_that_is_left_out_of_the_mask_is_found(make_model):
    for kind in ("mistral", "gemma3"):
        plan = MaskPlan(
            {"all": None} if kind == "mistral" else {"full_attention": None, "sliding_attention": None}, kind == "gemma3"
        )
        runtime = TransformerRuntime(ModelCall(make_model(kind)), plan, Limits(256, 512))
        blind = probed(runtime)
        assert blind.limits.no_trees_because is not None


def test_an_alibi_model_scores_chains_in_ragged_batches_and_refuses_trees(make_runtime, prompt, plain, random_tree):
    runtime, facts = make_runtime("bloom", probe=True)
    assert not facts.trees
    prompts = [prompt(3, seed=1), prompt(12, seed=2)]
    state, first = runtime.prefill(prompts, Features(last=True))
    chains = [chain([5, 9, 11], 3), chain([6], 12)]
    scored = runtime.score(state, chains)
    for row, tokens in enumerate(prompts):
        expected = plain(runtime, [*tokens, *chains[row].tokens])
        torch.testing.assert_close(first[row].logits[0], expected[len(tokens) - 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scored[row].logits, expected[len(tokens) :], rtol=1e-5, atol=1e-5)
    runtime.commit(state, [[1], []])
    after = runtime.score(state, [root_only(4, 5), root_only(4, 13)])
    torch.testing.assert_close(after[0].logits[0], plain(runtime, [*prompts[0], 5, 9, 4])[-1], rtol=1e-5, atol=1e-5)
    runtime.commit(state, [None, None])
    with pytest.raises(TargetMismatch, match="chains only"):
        runtime.score(state, [random_tree(12, 5, seed=1, deep=0.2), root_only(4, 13)])


def test_a_model_whose_cache_changes_its_logits_is_refused(make_model):
    model = make_model("llama")

    def forgetful(_, args, kwargs):
        if kwargs["input_ids"].shape[1] == 1 or kwargs.get("cache") is not None:
            kwargs["input_ids"] = kwargs["input_ids"] * 0 + 7
        return args, kwargs

    model.register_forward_pre_hook(forgetful, with_kwargs=True)
    with pytest.raises(TargetMismatch, match="does not reproduce its own logits"):
        probed(TransformerRuntime(ModelCall(model), MaskPlan({"all": None}, False), Limits(256, 512)))


class OneWrongNode:
    """A runtime whose node 5 of a tree of seven has another node's logits, in the first `times` trees."""

    def __init__(self, runtime, times):
        self.inner, self.times = runtime, times
        self.call, self.masks, self.limits = runtime.call, runtime.masks, runtime.limits

    def prefill(self, prompts, features):
        return self.inner.prefill(prompts, features)

    def score(self, state, trees):
        scored = self.inner.score(state, trees)
        if len(trees[0]) == len(BRANCHING) and self.times:
            self.times -= 1
            return [replace(scored[0], logits=scored[0].logits[[0, 1, 2, 3, 4, 1, 6]])]
        return scored

    def commit(self, state, paths):
        self.inner.commit(state, paths)


@pytest.mark.parametrize(
    ("kind", "times", "is_found"), [("llama", 1, True), ("mixtral", 9, True), ("mixtral", 1, False), ("llama", 0, False)]
)
def test_one_wrong_node_is_found_in_half_precision_unless_a_router_may_have_moved_it(kind, times, is_found, make_runtime):
    runtime, _ = make_runtime(kind, torch.bfloat16)
    assert (tree_fault(OneWrongNode(runtime, times), BRANCHING) is not None) == is_found
