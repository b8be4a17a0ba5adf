"""The distribution: a token's bits are those that plain decoding, token by token, gives it in the same mode."""

import pytest
import torch

from specdec.errors import SpecdecError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.bitwise import BitwiseRuntime
from specdec.targets.bitwise_forward import SHORTEST, path_length, path_mask
from specdec.trees.draft_tree import root_only

KINDS = ["llama", "gpt2", "mixtral", "qwen3_moe", "mistral", "gemma3"]
ALL = Features(last=True, layers=(0, 1, 2))


@pytest.fixture(scope="session")
def make_bitwise(make_model, skip_unless_repeatable):
    """The runtime of a tiny model in bitwise mode, or a skip where this machine's self-test refuses it."""
    made = {}

    def make(kind, dtype=torch.bfloat16, attention="sdpa") -> BitwiseRuntime:
        key = kind, dtype, attention
        if key not in made:
            with skip_unless_repeatable(dtype):
                made[key] = assemble(make_model(kind, dtype, attention), RunSettings(512, None, True, True), kind).runtime
        return made[key]

    return make


def step(runtime, state, tokens):
    """Plain decoding of one row: a token, a forward, a commit; what was said at each."""
    scored = []
    for token in tokens:
        scored.append(runtime.score(state, [root_only(token, state.lengths[0])])[0])
        runtime.commit(state, [[]])
    return scored


def plain(runtime, prompt, tokens):
    """What plain decoding says at each of `tokens` after a prompt."""
    state, _ = runtime.prefill([prompt], ALL)
    return step(runtime, state, tokens)


def same(one, row, other):
    """Bit for bit: logits and hidden states of a node and of a token of plain decoding."""
    return (
        torch.equal(one.logits[row], other.logits[0])
        and torch.equal(one.hidden.last[row], other.hidden.last[0])
        and torch.equal(one.hidden.layers[row], other.hidden.layers[0])
    )


def assert_tree_is_plain(runtime, prompt, tree, scored):
    """Every node of a scored tree against plain decoding of its path; where paths part, the state is copied."""
    states = {-1: runtime.prefill([prompt], ALL)[0]}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        states[node] = runtime.fork(states[parent], [1])
        assert same(scored, node, step(runtime, states[node], [token])[0]), node


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, torch.bfloat16) for kind in KINDS), ("llama", torch.float32), ("mixtral", torch.float32)]
)
def test_every_node_of_a_tree_has_the_bits_of_plain_decoding_on_its_path(kind, dtype, make_bitwise, prompt, random_tree):
    runtime = make_bitwise(kind, dtype)
    tokens, tree = prompt(13), random_tree(runtime.width + 4, 13, seed=3)
    state, _ = runtime.prefill([tokens], ALL)
    assert_tree_is_plain(runtime, tokens, tree, runtime.score(state, [tree])[0])
    state.check_integrity()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_eager_attention_keeps_the_bits_too(kind, make_bitwise, prompt, random_tree):
    runtime = make_bitwise(kind, attention="eager")
    tokens, tree = prompt(9), random_tree(12, 9, seed=4)
    state, _ = runtime.prefill([tokens], ALL)
    assert_tree_is_plain(runtime, tokens, tree, runtime.score(state, [tree])[0])


@pytest.mark.parametrize("kind", ["llama", "mistral", "mixtral"])
def test_a_prompt_leaves_the_bits_that_its_tokens_leave_one_by_one(kind, make_bitwise, prompt):
    runtime = make_bitwise(kind)
    tokens = prompt(2 * runtime.width + 3)
    state, first = runtime.prefill([tokens], ALL)
    grown, _ = runtime.prefill([tokens[:1]], ALL)
    stepped = step(runtime, grown, tokens[1:])
    assert torch.equal(first[0].logits[0], stepped[-1].logits[0])
    for place, expected in enumerate(stepped, start=1):
        assert torch.equal(first[0].hidden.last[place], expected.hidden.last[0])
        assert torch.equal(first[0].hidden.layers[place], expected.hidden.layers[0])
    for layer in range(runtime.call.num_layers):
        for got, expected in zip(state.kv.contents(layer, 0), grown.kv.contents(layer, 0), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rows_of_a_ragged_batch_have_the_bits_that_they_have_alone(kind, make_bitwise, prompt, random_tree):
    runtime = make_bitwise(kind)
    prompts = [prompt(length, seed=length) for length in (2, 19, 9)]
    trees = [random_tree(nodes, len(p), seed=nodes) for nodes, p in zip((5, 1, 23), prompts, strict=True)]
    state, first = runtime.prefill(prompts, ALL)
    batch = runtime.score(state, trees)
    runtime.commit(state, [trees[0].path(4), [], trees[2].path(22)])
    after = runtime.score(state, [root_only(9, length) for length in state.lengths])
    for row, (tokens, tree) in enumerate(zip(prompts, trees, strict=True)):
        alone, alone_first = runtime.prefill([tokens], ALL)
        assert torch.equal(first[row].logits, alone_first[0].logits)
        assert_tree_is_plain(runtime, tokens, tree, batch[row])
        step(runtime, alone, [tree.tokens[n] for n in (0, *tree.path(len(tree) - 1))])
        assert same(after[row], 0, step(runtime, alone, [9])[0])


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_decoding_through_trees_goes_on_with_the_bits_of_plain_decoding(kind, make_bitwise, prompt, random_tree):
    runtime = make_bitwise(kind)
    tokens = prompt(7)
    state, _ = runtime.prefill([tokens], ALL)
    past = []
    for seed in range(4):
        tree = random_tree(11, state.lengths[0], seed=seed, deep=0.6)
        scored = runtime.score(state, [tree])[0]
        path = tree.path(len(tree) - 1)
        runtime.commit(state, [path])
        state.check_integrity()
        past += [tree.tokens[n] for n in (0, *path)]
        assert same(scored, len(tree) - 1, plain(runtime, tokens, past)[-1])


def test_a_tree_across_the_edge_of_a_path_buffer_keeps_the_bits(make_bitwise, prompt, random_tree):
    runtime = make_bitwise("llama")
    tokens = prompt(SHORTEST - 4)
    tree = random_tree(14, len(tokens), seed=6, deep=0.8)
    assert max(tree.depths) > 5
    state, _ = runtime.prefill([tokens], ALL)
    assert_tree_is_plain(runtime, tokens, tree, runtime.score(state, [tree])[0])


def test_level_by_level_gives_the_bits_of_the_whole_tree(make_bitwise, prompt, random_tree):
    runtime = make_bitwise("llama")
    tokens, tree = prompt(14), random_tree(20, 14, seed=8)
    at_once = runtime.score(runtime.prefill([tokens], ALL)[0], [tree])[0]
    state, _ = runtime.prefill([tokens], ALL)
    logits = []
    for size in (1, 7, 7, 20):
        part = random_tree(size, 14, seed=8)
        assert part.tokens == tree.tokens[:size]
        scored = runtime.score(state, [part])[0]
        assert scored.first_node == sum(map(len, logits))
        logits.append(scored.logits)
    assert torch.equal(torch.cat(logits), at_once.logits)


def test_rows_that_leave_and_rows_that_are_copied_keep_their_bits(make_bitwise, prompt, random_tree):
    runtime = make_bitwise("llama")
    prompts = [prompt(length, seed=length) for length in (4, 15, 7)]
    state, _ = runtime.prefill(prompts, ALL)
    trees = [random_tree(9, len(tokens), seed=row) for row, tokens in enumerate(prompts)]
    runtime.score(state, trees)
    runtime.keep(state, [1, 2])
    twins = runtime.fork(state, [2, 1])
    runtime.commit(state, [trees[1].path(5), None])
    assert state.lengths == (15 + 1 + len(trees[1].path(5)), 7)
    assert twins.lengths == (15, 15, 7)
    sources = [prompts[1], prompts[1], prompts[2]]
    others = [random_tree(6, len(tokens), seed=row + 5) for row, tokens in enumerate(sources)]
    for tokens, tree, scored in zip(sources, others, runtime.score(twins, others), strict=True):
        assert_tree_is_plain(runtime, tokens, tree, scored)
    twins.check_integrity()
    state.check_integrity()


def test_rows_that_join_keep_their_bits(make_bitwise, prompt, random_tree):
    runtime = make_bitwise("llama")
    prompts = [prompt(length, seed=length) for length in (4, 15, 7)]
    state, _ = runtime.prefill(prompts[:1], ALL)
    trees = [random_tree(9, 4, seed=1)]
    runtime.score(state, trees)
    runtime.commit(state, [None])
    runtime.join(state, runtime.prefill(prompts[1:], ALL)[0])
    assert state.lengths == (4, 15, 7)
    others = [random_tree(6, len(tokens), seed=row + 5) for row, tokens in enumerate(prompts)]
    for tokens, tree, scored in zip(prompts, others, runtime.score(state, others), strict=True):
        assert_tree_is_plain(runtime, tokens, tree, scored)
    state.check_integrity()


@pytest.mark.parametrize("kind", [*KINDS, "granite"])
def test_the_numbers_are_the_models_own(kind, make_bitwise, prompt, random_tree, path_logits):
    runtime = make_bitwise(kind, torch.float64)
    tokens, tree = prompt(20), random_tree(12, 20, seed=1)
    state, _ = runtime.prefill([tokens], Features())
    scored = runtime.score(state, [tree])[0].logits
    torch.testing.assert_close(scored, path_logits(runtime, tokens, tree), rtol=1e-9, atol=1e-9)


def test_logits_of_half_precision_come_as_float32(make_bitwise, prompt):
    _, scored = make_bitwise("llama").prefill([prompt(3)], Features())
    assert scored[0].logits.dtype == torch.float32


def test_the_first_of_equal_logits_wins_alone_and_among_others():
    torch.manual_seed(0)
    rows = torch.randn(6, 333).to(torch.bfloat16).float().round()
    expected = [min(i for i, value in enumerate(row) if value == max(row)) for row in rows.tolist()]
    assert rows.max(-1).indices.tolist() == expected
    assert [int(row[None].max(-1).indices) for row in rows] == expected
    assert [int(row.argmax()) for row in rows] == expected


def test_a_path_buffer_has_the_length_that_its_position_fixes():
    assert [path_length(position) for position in (0, 127, 128, 255, 256, 1000)] == [128, 128, 256, 256, 512, 1024]


def test_on_its_path_a_token_sees_itself_and_what_stands_before_it():
    mask = path_mask(torch.tensor([0, 2, 4]), 5, None)
    assert mask.shape == (3, 1, 1, 5)
    assert mask[:, 0, 0].int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_a_window_hides_what_stands_further_back_and_counts_the_token_itself():
    mask = path_mask(torch.tensor([0, 2, 4]), 5, 3)
    assert mask[:, 0, 0].int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert path_mask(torch.tensor([4]), 5, 1)[0, 0, 0].int().tolist() == [0, 0, 0, 0, 1]
    assert torch.equal(path_mask(torch.tensor([4]), 5, 5), path_mask(torch.tensor([4]), 5, None))


def test_what_cannot_be_scored_is_refused_and_harms_nothing(make_bitwise, make_runtime, prompt, random_tree):
    runtime = make_bitwise("llama")
    tokens, tree = prompt(6), random_tree(8, 6, seed=1)
    state, _ = runtime.prefill([tokens], ALL)
    with pytest.raises(SpecdecError, match="root stands at 9"):
        runtime.score(state, [random_tree(3, 9, seed=1)])
    with pytest.raises(SpecdecError, match="no path of scored nodes"):
        runtime.commit(state, [[1]])
    with pytest.raises(TargetMismatch, match="holds at most 256"):
        runtime.prefill([prompt(257)], ALL)
    with pytest.raises(SpecdecError, match="no state of this target"):
        runtime.score(make_runtime("llama")[0].prefill([tokens], ALL)[0], [tree])
    assert_tree_is_plain(runtime, tokens, tree, runtime.score(state, [tree])[0])
    assert len(runtime.score(state, [tree])[0].logits) == 0


def test_no_more_than_the_width_is_run_at_once(make_bitwise, prompt, random_tree):
    runtime = make_bitwise("llama")
    shapes = []
    hook = runtime.call.model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    prompts = [prompt(5), prompt(30)]
    state, _ = runtime.prefill(prompts, ALL)
    runtime.score(state, [random_tree(20, 5, seed=1), random_tree(1, 30, seed=2)])
    hook.remove()
    assert set(shapes) == {(runtime.width, 1)}
    assert len(shapes) == -(-35 // runtime.width) + -(-21 // runtime.width)
