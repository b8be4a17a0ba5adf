"""One-pass heads against plain loops over numbers, and what each row of a block may see."""

import math

import pytest
import torch

from specdec.heads.block import BlockConfig, BlockHead, KeysValues
from specdec.heads.block_session import block_mask

HIDDEN, HEADS, KV_HEADS, DIM, VOCAB = 8, 4, 2, 4, 11
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 10,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "layers": (1, 3),
    "block_size": 4,
    "mask_token_id": 10,
    "num_layers": 2,
}


def seeded(dtype, **changes) -> BlockHead:
    head = BlockHead(BlockConfig(**{**SIZES, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return head.to(dtype)


def run(head, features, embedded) -> torch.Tensor:
    """[block, hidden] after context features [tokens, layers, hidden] and embeddings [block, hidden]."""
    tokens, size = len(features), len(embedded)
    known = head.context_keys_values(head.context(features[None]), torch.arange(tokens)[None])
    mask = block_mask([tokens], size, slots=tokens + size, causal=head.config.causal)
    bias = torch.zeros(mask.shape, dtype=embedded.dtype).masked_fill(~mask, float("-inf"))

    def seen(layer, own):
        return KeysValues(torch.cat((known[layer].keys, own.keys), 2), torch.cat((known[layer].values, own.values), 2))

    with torch.no_grad():
        return head.lm_head_states(head(embedded[None], torch.arange(tokens, tokens + size)[None], bias, seen))[0]


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def times(matrix, vector):
    return [dot(line, vector) for line in matrix]


def normed(weight, vector, eps=1e-5):
    scale = 1 / math.sqrt(dot(vector, vector) / len(vector) + eps)
    return [w * x * scale for w, x in zip(weight, vector, strict=True)]


def turned(vector, position, dtype):
    """Rotated by frequencies in float32, as all of them are here, and angles in the dtype of the states."""
    half = len(vector) // 2
    waves = torch.tensor([10000.0 ** (-2 * pair / len(vector)) for pair in range(half)], dtype=torch.float32).to(dtype)
    cosines, sines = (waves * position).cos().tolist(), (waves * position).sin().tolist()
    first = [vector[n] * cosines[n] - vector[n + half] * sines[n] for n in range(half)]
    return first + [vector[n + half] * cosines[n] + vector[n] * sines[n] for n in range(half)]


def by_hand(head, features, embedded) -> list[list[float]]:
    """The same in plain loops: every block row in every layer attends to the context and to what its kind may see."""
    weights = {name: tensor.double().tolist() for name, tensor in head.state_dict().items()}
    config = head.config
    context = [
        normed(weights["hidden_norm.weight"], times(weights["fc.weight"], token)) for token in features.flatten(1).tolist()
    ]
    states = embedded.tolist()
    for layer in range(config.num_layers):
        at = f"layers.{layer}.self_attn."

        def headed(vector, name, norm, position, at=at):
            flat = times(weights[f"{at}{name}_proj.weight"], vector)
            parts = [flat[n : n + DIM] for n in range(0, len(flat), DIM)]
            if norm is not None and config.qk_norm:
                parts = [normed(weights[f"{at}{norm}.weight"], part) for part in parts]
            return parts if norm is None else [turned(part, position, embedded.dtype) for part in parts]

        read = [normed(weights[f"layers.{layer}.input_layernorm.weight"], state) for state in states]
        rows = [*context, *read]
        keys = [headed(row, "k", "k_norm", place) for place, row in enumerate(rows)]
        values = [headed(row, "v", None, place) for place, row in enumerate(rows)]
        after = []
        for place, (state, own) in enumerate(zip(states, read, strict=True)):
            query = headed(own, "q", "q_norm", len(context) + place)
            last = len(context) + (place if config.causal else len(states) - 1)
            mixed = []
            for number in range(HEADS):
                group = number // (HEADS // KV_HEADS)
                scores = [math.exp(dot(query[number], keys[n][group]) / math.sqrt(DIM)) for n in range(last + 1)]
                total = sum(scores)
                mixed += [sum(s * values[n][group][d] for n, s in enumerate(scores)) / total for d in range(DIM)]
            state = [a + b for a, b in zip(state, times(weights[f"{at}o_proj.weight"], mixed), strict=True)]
            inner = normed(weights[f"layers.{layer}.post_attention_layernorm.weight"], state)
            gate = times(weights[f"layers.{layer}.mlp.gate_proj.weight"], inner)
            up = times(weights[f"layers.{layer}.mlp.up_proj.weight"], inner)
            active = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            down = times(weights[f"layers.{layer}.mlp.down_proj.weight"], active)
            after.append([a + b for a, b in zip(state, down, strict=True)])
        states = after
    return [normed(weights["norm.weight"], state) for state in states]


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    "changes", [{}, {"causal": True}, {"qk_norm": False, "num_layers": 1}], ids=["dflash", "jetspec", "bare"]
)
def test_every_row_is_that_of_plain_loops_over_numbers(dtype, relative, changes):
    head = seeded(dtype, **changes)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 2, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    embedded = torch.randn(4, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    ours, expected = run(head, features, embedded), torch.tensor(by_hand(head, features, embedded), dtype=torch.float64)
    assert float((ours.double() - expected).abs().max() / expected.abs().max()) < relative


@pytest.mark.parametrize("causal", [False, True])
def test_a_causal_row_ignores_what_stands_behind_it_in_every_layer_and_a_bidirectional_one_does_not(causal):
    head = seeded(torch.float64, causal=causal)
    features, embedded = torch.randn(3, 2, HIDDEN).double(), torch.randn(4, HIDDEN).double()
    changed = embedded.clone()
    changed[3] += 1.0
    same = (run(head, features, embedded) == run(head, features, changed)).all(-1).tolist()
    assert same == ([True, True, True, False] if causal else [False] * 4)


def test_a_mask_hides_slots_behind_a_shorter_row_and_shows_its_own_block():
    mask = block_mask([1, 3], 2, slots=5, causal=True)[:, 0].int().tolist()
    assert mask == [[[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"mask_token_id": 11}, "11 of 11 tokens"), ({"own_lm_head": True}, "shares its target's"), ({"layers": ()}, "layers")],
)
def test_a_config_that_describes_no_head_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BlockConfig(**{**SIZES, **changes})


@pytest.mark.parametrize(("from_anchor", "depths"), [(False, 3), (True, 4)])
def test_the_last_tokens_own_row_is_a_depth_where_drafts_start_there(from_anchor, depths):
    assert BlockConfig(**SIZES, from_anchor=from_anchor).depths == depths
