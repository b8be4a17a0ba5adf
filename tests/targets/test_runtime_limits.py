import pytest
import torch

from specdec.errors import SpecdecError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.trees.draft_tree import Draw, TreeSketch, root_only

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def test_nothing_lies_beyond_the_context(make_runtime, prompt):
    runtime, facts = make_runtime("gpt2", max_context=32)
    assert facts.max_positions == 32
    state, _ = runtime.prefill([prompt(31)], Features())
    assert len(runtime.score(state, [root_only(4, 31)])) == 1
    sketch = TreeSketch(4, 31)
    sketch.add(0, 5)
    with pytest.raises(TargetMismatch, match="position 32 lies beyond the context of 32"):
        runtime.score(state, [sketch.freeze(Draw.DETERMINISTIC)])
    runtime.prefill([prompt(32)], Features())
    with pytest.raises(TargetMismatch, match="prompt 0 has 33 tokens; the context holds at most 32"):
        runtime.prefill([prompt(33)], Features())


def test_a_padded_row_near_the_end_of_the_context_stays_within_it(make_runtime, prompt, random_tree, path_logits):
    runtime, _ = make_runtime("gpt2")
    prompts = [prompt(255, seed=1), prompt(3, seed=2)]
    state, _ = runtime.prefill(prompts, Features())
    trees = [root_only(7, 255), random_tree(12, 3, seed=5)]
    scored = runtime.score(state, trees)
    for tokens, tree, row in zip(prompts, trees, scored, strict=True):
        torch.testing.assert_close(row.logits, path_logits(runtime, tokens, tree), **EXACT)


def test_wrong_calls_are_refused(make_runtime, prompt, random_tree):
    runtime, _ = make_runtime("llama")
    with pytest.raises(SpecdecError, match="prompt 1 is empty"):
        runtime.prefill([[3], []], Features())
    with pytest.raises(TargetMismatch, match="outside the vocabulary"):
        runtime.prefill([[3, 96]], Features())
    state, _ = runtime.prefill([prompt(5)], Features())
    with pytest.raises(SpecdecError, match="root stands at 4"):
        runtime.score(state, [root_only(3, 4)])
    tree = random_tree(8, 5, seed=3)
    with pytest.raises(SpecdecError, match="no path of scored nodes"):
        runtime.commit(state, [[]])
    runtime.score(state, [tree])
    with pytest.raises(SpecdecError, match="does not extend"):
        runtime.score(state, [random_tree(9, 5, seed=4)])
    with pytest.raises(SpecdecError, match="no path of scored nodes"):
        runtime.commit(state, [[7, 1]])


def test_a_state_knows_when_its_ledger_and_its_cache_differ(make_runtime, prompt):
    runtime, _ = make_runtime("llama")
    state, _ = runtime.prefill([prompt(5)], Features())
    state.check_integrity()
    state.kv.lengths[0] = 4
    with pytest.raises(SpecdecError, match="5"):
        state.check_integrity()
