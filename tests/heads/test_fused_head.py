"""A head as drafting runs it, against its own modules."""

import pytest
import torch

from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.fused_head import FusedHead
from specdec.nn.grouped_query_attention import FEW_NODES

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 40, "embedding_scale": 7.0, "feature_scale": 0.5,
}  # fmt: skip
KINDS = {
    **{f"eagle {inputs.value}": {"inputs": inputs} for inputs in Inputs},
    "biased": {"qkv_bias": True, "fc_bias": True},
    "every head its own keys": {"num_key_value_heads": 4},
    "scaled rotations": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "stretched rotations": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        }
    },
    "eagle3 of a wider target": {"layers": (0, 1, 2), "own_lm_head": True, "target_hidden_size": 40},
    "eagle3": {"layers": (0, 1, 2), "own_lm_head": True},
    "eagle3 normed": {"layers": (0, 2), "own_lm_head": True, "norm_before_residual": True},
}
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def pair(changes, dtype):
    torch.manual_seed(0)
    config = HeadConfig(**{**SIZES, **changes})
    module = (EagleHead3 if config.layers else EagleHead)(config)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.2) if parameter.dim() > 1 else parameter.data.uniform_(0.5, 1.5)
    module = module.to(dtype)
    # The rotations' frequencies stay what they are in any dtype.
    module.apply(lambda m: setattr(m, "frequencies", m.frequencies.float()) if hasattr(m, "frequencies") else None)
    return module, FusedHead(module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("nodes", [1, 5, FEW_NODES + 3])
def test_it_says_what_the_modules_say(kind, dtype, nodes):
    module, fused = pair(KINDS[kind], dtype)
    past = 6
    slots = past + nodes
    kept = [torch.randn(2, module.config.num_key_value_heads, past, 8, dtype=dtype) for _ in range(2)]
    embeddings, hidden = (torch.randn(2, nodes, 32, dtype=dtype) for _ in range(2))
    positions = torch.randint(past, slots, (2, nodes))
    seen = torch.rand(2, 1, nodes, slots) < 0.5
    seen[..., 0] = True
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)

    def update(keys, values):
        return torch.cat((kept[0], keys), 2), torch.cat((kept[1], values), 2)

    with torch.inference_mode():
        expected = module(embeddings, hidden, positions, mask=mask, update=update)
        given = fused(embeddings, hidden, positions, mask=mask, update=update)
        close(given, expected, dtype)
        close(fused.lm_head_states(expected), module.lm_head_states(expected), dtype)
        width, layers = module.config.target_hidden_size or 32, len(module.config.layers)
        features = torch.randn(2, nodes, *((layers, width) if layers else (width,)), dtype=dtype)
        close(fused.input_projection(features), module.input_projection(features), dtype)


def close(given, expected, dtype):
    assert given.dtype == expected.dtype == dtype
    torch.testing.assert_close(given, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * float(expected.abs().max()))


def test_rotations_are_found_for_longer_and_longer_texts():
    module, fused = pair({}, torch.float64)
    for slots in (3, 4, 9, 200, 5):
        states = torch.randn(1, 1, 32, dtype=torch.float64)
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.float64).expand(1, 1, 1, slots).contiguous()
        past = torch.randn(1, 2, slots - 1, 8, dtype=torch.float64)
        run = {"mask": mask, "update": lambda k, v, past=past: (torch.cat((past, k), 2), torch.cat((past, v), 2))}
        at = torch.tensor([[slots - 1]])
        with torch.inference_mode():
            close(fused(states, states, at, **run), module(states, states, at, **run), torch.float64)


def test_weights_that_were_joined_stay_the_modules_own():
    module, fused = pair({"layers": (0, 1), "own_lm_head": True}, torch.float32)
    attention, joined = module.midlayer.self_attn, fused._attention.queries_keys_values.weight
    assert attention.q_proj.weight.untyped_storage().data_ptr() == joined.untyped_storage().data_ptr()
    assert torch.equal(joined, torch.cat([m.weight for m in (attention.q_proj, attention.k_proj, attention.v_proj)]))
