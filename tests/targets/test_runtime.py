import pytest
import torch

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Features
from specdec.nn.prefill_batches import prompt_batches
from specdec.targets.assembly import RunSettings, assemble
from specdec.trees.draft_tree import Draw, TreeSketch, root_only

TREES = ["llama", "gpt2", "mixtral", "qwen3_moe", "mistral", "gemma3"]
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize(("prefix", "nodes"), [(3, 12), (20, 24), (1, 1)])
def test_every_node_of_a_tree_is_scored_as_a_plain_forward_scores_its_path(
    kind, attention, prefix, nodes, make_runtime, prompt, random_tree, path_logits
):
    runtime, _ = make_runtime(kind, attention=attention)
    tokens = prompt(prefix)
    state, _ = runtime.prefill([tokens], Features())
    tree = random_tree(nodes, prefix, seed=nodes)
    scored = runtime.score(state, [tree])[0]
    # Eager attention takes its softmax in float32 by transformers' own choice.
    torch.testing.assert_close(
        scored.logits, path_logits(runtime, tokens, tree), **(EXACT if attention == "sdpa" else {"rtol": 1e-5, "atol": 1e-5})
    )


@pytest.mark.parametrize("kind", TREES)
def test_trees_of_64_nodes_are_scored_as_their_paths_are(kind, make_runtime, prompt, random_tree, path_logits):
    runtime, _ = make_runtime(kind)
    for prefix, deep in ((5, 0.9), (30, 0.4)):
        tokens = prompt(prefix)
        state, _ = runtime.prefill([tokens], Features())
        tree = random_tree(64, prefix, seed=prefix, deep=deep)
        torch.testing.assert_close(runtime.score(state, [tree])[0].logits, path_logits(runtime, tokens, tree), **EXACT)


@pytest.mark.parametrize("kind", TREES)
def test_bfloat16_trees_are_scored_loosely_as_their_paths_are(kind, make_runtime, prompt, random_tree, path_logits):
    runtime, _ = make_runtime(kind, dtype=torch.bfloat16)
    tokens = prompt(20)
    state, _ = runtime.prefill([tokens], Features())
    tree = random_tree(10, 20, seed=4)
    expected = path_logits(runtime, tokens, tree).float()
    distance = (runtime.score(state, [tree])[0].logits.float() - expected).abs().median()
    assert distance < 0.1 * expected.std()


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_experts_as_transformers_runs_them_by_default_give_the_same_trees(kind, make_model, prompt, random_tree, path_logits):
    model = make_model(kind, torch.float32)
    model.set_experts_implementation("grouped_mm")
    runtime = assemble(model, RunSettings(512, None, True), kind).runtime
    assert runtime.limits.no_trees_because is None
    tokens, tree = prompt(20), random_tree(16, 20, seed=5)
    state, _ = runtime.prefill([tokens], Features())
    got = runtime.score(state, [tree])[0].logits
    torch.testing.assert_close(got, path_logits(runtime, tokens, tree), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", TREES)
def test_a_siblings_token_changes_no_other_nodes_logits(kind, make_runtime, prompt):
    runtime, _ = make_runtime(kind)
    logits = []
    for sibling in (40, 41):
        state, _ = runtime.prefill([prompt(12)], Features())
        sketch = TreeSketch(5, 12)
        sketch.add(0, 30)
        sketch.add(0, sibling)
        sketch.add(1, 31)
        logits.append(runtime.score(state, [sketch.freeze(Draw.DETERMINISTIC)])[0].logits)
    torch.testing.assert_close(logits[0][[0, 1, 3]], logits[1][[0, 1, 3]], rtol=0, atol=1e-12)
    assert not torch.allclose(logits[0][2], logits[1][2])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "gemma3"])
def test_scoring_level_by_level_equals_scoring_at_once(kind, make_runtime, prompt, random_tree):
    runtime, _ = make_runtime(kind)
    tokens = prompt(14)
    tree = random_tree(20, 14, seed=8)
    at_once = runtime.score(runtime.prefill([tokens], Features())[0], [tree])[0].logits
    state, _ = runtime.prefill([tokens], Features())
    parts = []
    for size in (1, 2, 7, 7, 20):
        sketch = TreeSketch(tree.tokens[0], 14)
        for node in range(1, size):
            sketch.add(tree.parents[node], tree.tokens[node])
        scored = runtime.score(state, [sketch.freeze(Draw.DETERMINISTIC)])[0]
        assert scored.first_node == sum(map(len, parts))
        parts.append(scored.logits)
    torch.testing.assert_close(torch.cat(parts), at_once, **EXACT)


@pytest.mark.parametrize("lengths", [(2, 19, 9), (2, 90, 9)], ids=["one prefill", "a prefill each"])
@pytest.mark.parametrize("kind", TREES)
def test_rows_of_a_ragged_batch_are_scored_as_if_alone(kind, lengths, make_runtime, prompt, random_tree):
    runtime, _ = make_runtime(kind)
    assert len(prompt_batches(lengths, runtime.limits.prefill_chunk, "cpu")) == (1 if max(lengths) < 20 else 3)
    prompts = [prompt(length, seed=length) for length in lengths]
    trees = [random_tree(nodes, len(p), seed=nodes) for nodes, p in zip((5, 1, 17), prompts, strict=True)]
    state, first = runtime.prefill(prompts, Features())
    batch = runtime.score(state, trees)
    runtime.commit(state, [trees[0].path(4), [], trees[2].path(16)])
    after = runtime.score(state, [root_only(9, length) for length in state.lengths])
    for row, (tokens, tree) in enumerate(zip(prompts, trees, strict=True)):
        solo, solo_first = runtime.prefill([tokens], Features())
        torch.testing.assert_close(first[row].logits, solo_first[0].logits, **EXACT)
        torch.testing.assert_close(batch[row].logits, runtime.score(solo, [tree])[0].logits, **EXACT)
        runtime.commit(solo, [tree.path(len(tree) - 1)])
        root = root_only(9, solo.lengths[0])
        torch.testing.assert_close(after[row].logits, runtime.score(solo, [root])[0].logits, **EXACT)


@pytest.mark.parametrize("kind", TREES)
def test_the_cache_after_a_commit_equals_one_computed_afresh_for_every_path(kind, make_runtime, prompt, random_tree):
    runtime, _ = make_runtime(kind)
    tokens = prompt(11)
    tree = random_tree(9, 11, seed=2, deep=0.4)
    for node in range(len(tree)):
        state, _ = runtime.prefill([tokens], Features())
        runtime.score(state, [tree])
        runtime.commit(state, [tree.path(node)])
        afresh, _ = runtime.prefill([[*tokens, tree.tokens[0], *tree.path_tokens(node)]], Features())
        assert state.lengths == afresh.lengths
        state.check_integrity()
        for layer in range(runtime.call.num_layers):
            for got, expected in zip(state.kv.contents(layer, 0), afresh.kv.contents(layer, 0), strict=True):
                torch.testing.assert_close(got, expected, **EXACT)


def test_committing_none_keeps_not_even_the_root(make_runtime, prompt, random_tree, path_logits):
    runtime, _ = make_runtime("llama")
    tokens = prompt(6)
    state, _ = runtime.prefill([tokens], Features())
    runtime.score(state, [random_tree(8, 6, seed=1)])
    runtime.commit(state, [None])
    assert state.lengths == (6,)
    other = random_tree(8, 6, seed=2)
    torch.testing.assert_close(runtime.score(state, [other])[0].logits, path_logits(runtime, tokens, other), **EXACT)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rows_that_stay_keep_their_uncommitted_drafts(kind, make_runtime, prompt, random_tree, path_logits):
    runtime, _ = make_runtime(kind)
    prompts = [prompt(length, seed=length) for length in (4, 15, 7)]
    state, _ = runtime.prefill(prompts, Features())
    trees = [random_tree(9, len(tokens), seed=row) for row, tokens in enumerate(prompts)]
    runtime.score(state, trees)
    runtime.keep(state, [0, 2])
    paths = [trees[0].path(5), trees[2].path(8)]
    runtime.commit(state, paths)
    state.check_integrity()
    after = [
        [*prompts[r], trees[r].tokens[0], *(trees[r].tokens[n] for n in path)] for r, path in zip((0, 2), paths, strict=True)
    ]
    others = [random_tree(6, len(tokens), seed=row + 5) for row, tokens in enumerate(after)]
    for tokens, tree, scored in zip(after, others, runtime.score(state, others), strict=True):
        torch.testing.assert_close(scored.logits, path_logits(runtime, tokens, tree), **EXACT)


@pytest.fixture
def step_as_if_alone(random_tree, path_logits):
    """Score a tree per row, each as its text alone would, and commit a path; gives the trees."""

    def step(runtime, state, texts):
        trees = [random_tree(6 + row, len(tokens), seed=row) for row, tokens in enumerate(texts)]
        for tokens, tree, scored in zip(texts, trees, runtime.score(state, trees), strict=True):
            torch.testing.assert_close(scored.logits, path_logits(runtime, tokens, tree), **EXACT)
        runtime.commit(state, [tree.path(3) for tree in trees])
        state.check_integrity()
        return trees

    return step


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rows_that_leave_and_rows_that_are_copied_go_on_as_if_alone(kind, make_runtime, prompt, step_as_if_alone, path_logits):
    runtime, _ = make_runtime(kind)
    prompts = [prompt(length, seed=length) for length in (4, 15, 7)]
    state, _ = runtime.prefill(prompts, Features())
    runtime.keep(state, [1, 2])
    twins = runtime.fork(state, [2, 1])
    runtime.keep(state, [1])
    assert state.lengths == (7,)
    assert twins.lengths == (15, 15, 7)
    trees = step_as_if_alone(runtime, twins, [prompts[1], prompts[1], prompts[2]])
    torch.testing.assert_close(runtime.score(state, [trees[2]])[0].logits, path_logits(runtime, prompts[2], trees[2]), **EXACT)
    state.check_integrity()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rows_that_join_go_on_as_if_alone(kind, make_runtime, prompt, step_as_if_alone):
    runtime, _ = make_runtime(kind)
    prompts = [prompt(length, seed=length) for length in (4, 15, 90)]
    state, _ = runtime.prefill(prompts[:2], Features())
    runtime.keep(state, [1])
    runtime.join(state, runtime.prefill([prompts[2], prompts[0]], Features())[0])
    assert state.lengths == (15, 90, 4)
    step_as_if_alone(runtime, state, [prompts[1], prompts[2], prompts[0]])


def test_only_another_state_with_the_same_features_joins(make_runtime, prompt):
    runtime, _ = make_runtime("llama")
    state, _ = runtime.prefill([prompt(4)], Features())
    with pytest.raises(SpecdecError, match="another state with the same features"):
        runtime.join(state, state)
    with pytest.raises(SpecdecError, match="another state with the same features"):
        runtime.join(state, runtime.prefill([prompt(4)], Features(last=True))[0])


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_a_prompt_fed_in_chunks_gives_what_the_whole_gives(kind, chunk, make_runtime, prompt):
    whole, _ = make_runtime(kind)
    chunked, _ = make_runtime(kind, chunk=chunk)
    prompts = [prompt(16, seed=1), prompt(3, seed=2), prompt(11, seed=3)]
    wanted = Features(last=True, layers=(1, 2))
    for batch in (prompts, prompts[:1]):
        state, expected = whole.prefill(batch, wanted)
        chunked_state, got = chunked.prefill(batch, wanted)
        for row in range(len(batch)):
            torch.testing.assert_close(got[row].logits, expected[row].logits, **EXACT)
            torch.testing.assert_close(got[row].hidden.last, expected[row].hidden.last, **EXACT)
            torch.testing.assert_close(got[row].hidden.layers, expected[row].hidden.layers, **EXACT)
            for theirs, ours in zip(state.kv.contents(1, row), chunked_state.kv.contents(1, row), strict=True):
                torch.testing.assert_close(ours, theirs, **EXACT)


def test_prefill_gives_the_models_own_logits_at_each_prompts_end(make_runtime, prompt, plain):
    for kind in TREES:
        runtime, _ = make_runtime(kind)
        prompts = [prompt(length, seed=length) for length in (1, 2, 7)]
        _, scored = runtime.prefill(prompts, Features())
        for tokens, row in zip(prompts, scored, strict=True):
            torch.testing.assert_close(row.logits, plain(runtime, tokens)[-1:], **EXACT)


def test_the_cache_moves_as_many_bytes_per_step_after_a_long_prompt_as_after_a_short_one(make_runtime, prompt, random_tree):
    runtime, _ = make_runtime("llama")
    moved = []
    for length in (10, 130):
        state, _ = runtime.prefill([prompt(length)], Features())
        runtime.score(state, [root_only(3, length)])
        runtime.commit(state, [[]])
        before = state.kv.bytes_moved
        for step in range(4):
            tree = random_tree(8, state.lengths[0], seed=step, deep=0.3)
            runtime.score(state, [tree])
            runtime.commit(state, [tree.path(7)])
        moved.append(state.kv.bytes_moved - before)
    assert moved[0] == moved[1] > 0
