"""The compiled forward: the fused one's numbers, in shapes that recur."""

import shutil

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, LlamaConfig

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.assembly import RunSettings, assemble
from specdec.trees.draft_tree import Draw, TreeSketch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")

CONFIG = LlamaConfig(
    vocab_size=61, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    max_position_embeddings=256,
)  # fmt: skip
WANTED = Features(last=True, layers=(0, 2))


def runtime(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="sdpa").eval()
    return assemble(model, RunSettings(16, None, probe=True, forward=kind), "").runtime


def steps(lengths):
    """Trees of two rows, step by step, and the paths that are kept; in all more tokens than the cache's first block has."""
    draw = torch.Generator().manual_seed(3)

    def number(below):
        return int(torch.randint(below, (), generator=draw))

    for step in range(16):
        trees = []
        for length in lengths():
            sketch = TreeSketch(number(61), length)
            for node in range(step % 5 + number(3)):
                sketch.add(number(node + 1), node)
            trees.append(sketch.freeze(Draw.DETERMINISTIC))
        yield trees, [tree.path(len(tree) - 1) for tree in trees]


def answers(kind):
    """Logits and hidden states, node by node."""
    forward = runtime(kind)
    state, _ = forward.prefill([list(range(40)), list(range(7, 60))], WANTED)
    found = []
    for trees, paths in steps(lambda: state.lengths):
        for scored in forward.score(state, trees):
            found += [scored.logits, scored.hidden.last, scored.hidden.layers]
        forward.commit(state, paths)
    assert max(state.lengths) > 64
    return found, forward


def test_it_gives_the_fused_forwards_logits_and_hidden_states_and_compiles_a_width_once():
    expected, fused = answers("fused")
    torch._dynamo.reset()
    counters.clear()
    got, compiled = answers("compiled")
    assert type(fused.call.fused) is not type(compiled.call.fused)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # Two rows of 1, 2, 4 and 8 nodes; before that, at load, the probe: one row of 1 and of 8, without hidden states.
    assert counters["stats"]["unique_graphs"] == 6


def test_prompts_that_are_prefilled_apart_land_in_rows_of_their_own():
    prompts = [[5], list(range(60)), [7, 8], [9, 3]]
    first, second = (runtime(kind).prefill(prompts, WANTED) for kind in ("fused", "compiled"))
    for theirs, ours in zip(first[1], second[1], strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits)
    for row in range(len(prompts)):
        torch.testing.assert_close(second[0].kv.contents(1, row), first[0].kv.contents(1, row))


def test_a_machine_without_a_compiler_is_told_so(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda *_, **__: _no_compiler)
    with pytest.raises(TargetMismatch, match=r"no compiled forward: its forward fails with .*C\+\+ compiler.*forward: model"):
        runtime("compiled")


def _no_compiler(*_, **__):
    raise RuntimeError("No working C++ compiler found")
