import pytest
import torch

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.nn.rope import inverse_frequencies, rotate


def config(**changes) -> HeadConfig:
    sizes = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 50,
    }
    return HeadConfig(**{**sizes, **changes})


def parameters(sizes: HeadConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in EagleHead(sizes).parameters())


def llama(hidden, intermediate, heads, kv_heads, **changes) -> HeadConfig:
    return HeadConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=32000,
        **changes,
    )


def seeded(head):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 0.2)
    return head


@pytest.fixture(params=["eagle", "eagle3"])
def head(request):
    if request.param == "eagle":
        return seeded(EagleHead(config()))
    return seeded(EagleHead3(config(layers=(1, 2, 3), draft_vocab_size=20)))


def feed(head, rows=1, nodes=7):
    torch.manual_seed(1)
    width = (3, 24) if isinstance(head, EagleHead3) else (24,)
    return torch.randn(rows, nodes, 24), head.input_projection(torch.randn(rows, nodes, *width)), torch.arange(nodes)[None]


def test_parameter_counts_are_those_of_the_published_configs():
    assert parameters(llama(4096, 11008, 32, 32)) == 235_937_792
    assert round(parameters(llama(5120, 13824, 40, 40)) / 1e5) == 3696
    assert round(parameters(llama(8192, 28672, 64, 8)) / 1e5) == 9899
    assert round(parameters(llama(6656, 17920, 52, 13)) / 1e5) == 5572
    assert round(parameters(llama(4096, 14336, 32, 8, fc_bias=False)) / 1e5) == 2517


def test_names_and_shapes_of_an_eagle_head_are_the_published_ones():
    shapes = {name: tuple(tensor.shape) for name, tensor in EagleHead(config(qkv_bias=True)).state_dict().items()}
    assert shapes == {
        "fc.weight": (24, 48),
        "fc.bias": (24,),
        "layers.0.self_attn.q_proj.weight": (24, 24),
        "layers.0.self_attn.q_proj.bias": (24,),
        "layers.0.self_attn.k_proj.weight": (12, 24),
        "layers.0.self_attn.k_proj.bias": (12,),
        "layers.0.self_attn.v_proj.weight": (12, 24),
        "layers.0.self_attn.v_proj.bias": (12,),
        "layers.0.self_attn.o_proj.weight": (24, 24),
        "layers.0.post_attention_layernorm.weight": (24,),
        "layers.0.mlp.gate_proj.weight": (40, 24),
        "layers.0.mlp.up_proj.weight": (40, 24),
        "layers.0.mlp.down_proj.weight": (24, 40),
    }


def test_names_and_shapes_of_an_eagle3_head_are_the_published_ones():
    head = EagleHead3(config(layers=(1, 2, 3), draft_vocab_size=20, target_hidden_size=32))
    shapes = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    assert shapes == {
        "fc.weight": (24, 96),
        "midlayer.input_layernorm.weight": (24,),
        "midlayer.hidden_norm.weight": (24,),
        "midlayer.post_attention_layernorm.weight": (24,),
        "midlayer.self_attn.q_proj.weight": (24, 48),
        "midlayer.self_attn.k_proj.weight": (12, 48),
        "midlayer.self_attn.v_proj.weight": (12, 48),
        "midlayer.self_attn.o_proj.weight": (24, 24),
        "midlayer.mlp.gate_proj.weight": (40, 24),
        "midlayer.mlp.up_proj.weight": (40, 24),
        "midlayer.mlp.down_proj.weight": (24, 40),
        "norm.weight": (24,),
        "lm_head.weight": (20, 24),
    }


def test_a_later_input_never_changes_an_earlier_output(head):
    embeddings, hidden, positions = feed(head)
    before = head(embeddings, hidden, positions)
    embeddings[:, 4:] += 1.0
    hidden[:, 4:] -= 1.0
    after = head(embeddings, hidden, positions)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_one_by_one_with_a_cache_equals_all_at_once(head):
    embeddings, hidden, positions = feed(head, rows=2)
    at_once = head(embeddings, hidden, positions)
    kept = []

    def update(keys, values):
        kept.append((keys, values))
        return torch.cat([k for k, _ in kept], 2), torch.cat([v for _, v in kept], 2)

    for node in range(7):
        mask = torch.zeros(1, 1, 1, node + 1)
        one = head(
            embeddings[:, node : node + 1], hidden[:, node : node + 1], positions[:, node : node + 1], mask=mask, update=update
        )
        torch.testing.assert_close(one[:, 0], at_once[:, node], rtol=1e-5, atol=1e-5)


def test_a_hidden_slot_behind_the_nodes_changes_nothing(head):
    embeddings, hidden, positions = feed(head)
    plain = head(embeddings, hidden, positions)
    mask = torch.full((7, 9), torch.finfo(torch.float32).min).triu(1)[None, None]

    def padded(keys, values):
        return tuple(torch.cat((states, torch.full_like(states[:, :, :2], 7.0)), 2) for states in (keys, values))

    torch.testing.assert_close(head(embeddings, hidden, positions, mask=mask, update=padded), plain, rtol=1e-5, atol=1e-5)


def test_all_positions_moved_alike_give_the_same_output(head):
    embeddings, hidden, positions = feed(head)
    moved = head(embeddings, hidden, positions + 100)
    torch.testing.assert_close(moved, head(embeddings, hidden, positions), rtol=1e-3, atol=1e-4)
    stretched = head(embeddings, hidden, positions * 3)
    assert not torch.allclose(stretched, moved, atol=1e-3)


def test_the_embedding_comes_first_and_there_is_no_norm_before_or_after():
    head = EagleHead(config(fc_bias=False))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.fc.weight[:, 24:] = torch.eye(24)
    embeddings, hidden, positions = feed(head)
    assert torch.equal(head(embeddings, 100 * hidden, positions), 100 * hidden)
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, :24] = torch.eye(24)
    assert torch.equal(head(embeddings, hidden, positions), embeddings)


def test_the_recurrence_of_eagle3_is_the_state_before_the_norm():
    head = EagleHead3(config(layers=(1, 2, 3), draft_vocab_size=20))
    with torch.no_grad():
        head.midlayer.self_attn.o_proj.weight.zero_()
        head.midlayer.mlp.down_proj.weight.zero_()
        head.norm.weight.fill_(3.0)
    embeddings, hidden, positions = feed(head)
    output = head(embeddings, hidden, positions)
    assert torch.equal(output, hidden)
    assert not torch.allclose(head.lm_head_states(output), output)


@pytest.mark.parametrize("inputs", list(Inputs))
def test_an_ablated_input_has_no_influence(inputs):
    head = seeded(EagleHead(config(inputs=inputs)))
    embeddings, hidden, positions = feed(head)
    plain = head(embeddings, hidden, positions)
    assert torch.equal(head(embeddings + 1, hidden, positions), plain) is not inputs.has_token
    assert torch.equal(head(embeddings, hidden + 1, positions), plain) is not inputs.has_feature


def test_input_scales_fold_into_the_projection():
    scaled = seeded(EagleHead(config(embedding_scale=7.0, feature_scale=0.5)))
    folded = EagleHead(config())
    folded.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        folded.fc.weight[:, :24] *= 7.0
        folded.fc.weight[:, 24:] *= 0.5
    arguments = feed(scaled)
    torch.testing.assert_close(folded(*arguments), scaled(*arguments), rtol=1e-4, atol=1e-3)


def test_rotation_pairs_the_halves():
    states = torch.zeros(1, 1, 1, 4)
    states[..., 0] = 1.0
    turned = rotate(states, torch.tensor([[1]]), inverse_frequencies(4, 10000.0, None))
    torch.testing.assert_close(
        turned[0, 0, 0], torch.tensor([torch.cos(torch.tensor(1.0)), 0.0, torch.sin(torch.tensor(1.0)), 0.0])
    )


def test_linear_scaling_divides_and_an_unknown_one_is_refused():
    plain, scaled = (inverse_frequencies(8, 10000.0, s) for s in (None, {"type": "linear", "factor": 2.0}))
    torch.testing.assert_close(scaled * 2, plain)
    with pytest.raises(CheckpointError, match="yarn"):
        inverse_frequencies(8, 10000.0, {"rope_type": "yarn"})


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones():
    settings = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, scaled = inverse_frequencies(128, 500000.0, None), inverse_frequencies(128, 500000.0, settings)
    torch.testing.assert_close(scaled[:20], plain[:20])
    torch.testing.assert_close(scaled[-20:] * 8, plain[-20:])


def test_heads_that_cannot_share_key_value_heads_are_refused():
    with pytest.raises(ValueError, match="cannot share"):
        config(num_key_value_heads=3)
