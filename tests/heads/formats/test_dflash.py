"""One-pass folders in DFlash's layout: read, written, and refused by the names of what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import CheckpointError
from specdec.heads.block import BlockConfig, BlockHead
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.dflash import default_layer_ids, write_dflash
from specdec.heads.formats.reading import read_head

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, DIM = 8, 12, 20, 4, 2, 4
PUBLISHED = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "hidden_act": "silu",
    "block_size": 16,
    "dflash_config": {"mask_token_id": 19, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def tensors(layers=2, fused=5, markov=0) -> dict[str, torch.Tensor]:
    shapes = {"fc.weight": (HIDDEN, fused * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
    for layer in range(layers):
        at = f"layers.{layer}"
        shapes |= {f"{at}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{name}.weight": (DIM,) for name in ("q_norm", "k_norm")}
        shapes[f"{at}.self_attn.q_proj.weight"] = (HEADS * DIM, HIDDEN)
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (KV_HEADS * DIM, HIDDEN) for name in "kv"}
        shapes[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * DIM)
        shapes |= {f"{at}.mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    if markov:
        shapes |= {"markov_head.markov_w1.weight": (VOCAB, markov), "markov_head.markov_w2.weight": (VOCAB, markov)}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path):
    def write(weights, own=(), **changes):
        config = {**PUBLISHED, **changes, "dflash_config": {**PUBLISHED["dflash_config"], **dict(own)}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(weights, tmp_path / "model.safetensors")
        return tmp_path

    return write


def test_a_published_folder_is_read_and_a_layer_id_is_the_input_of_the_next_layer(folder):
    read = read_head(folder(tensors()))
    config = read.config
    assert (config.kind, config.layers, config.num_layers, config.block_size) == ("block", (2, 10, 18, 26, 34), 2, 16)
    assert (config.mask_token_id, config.causal, config.from_anchor, config.depths) == (19, False, False, 15)
    assert (config.qk_norm, config.rope_theta, config.made_for) == (True, 1000000.0, (HIDDEN, VOCAB))
    assert all(torch.equal(tensor, read.head.state_dict()[name]) for name, tensor in tensors().items())
    assert read.head.frequencies.device.type == "cpu"


def test_jetspecs_causal_head_and_dsparks_bias_are_read(folder):
    assert head_config(read_config(folder(tensors(), {"causal_head": True}))).causal
    path = folder(tensors(markov=3), sample_from_anchor=True, markov_rank=3, markov_head_type="vanilla")
    config = read_head(path).config
    assert (config.from_anchor, config.depths, config.markov_rank) == (True, 16, 3)


def test_layers_that_no_config_names_are_spread_evenly(folder):
    assert default_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert default_layer_ids(30, 1) == [15]
    path = folder(tensors(fused=3), {"target_layer_ids": None})
    assert head_config(read_config(path)).layers == (2, 18, 34)


def test_what_is_missing_or_superfluous_is_named(folder):
    weights = tensors()
    del weights["hidden_norm.weight"], weights["layers.1.self_attn.k_norm.weight"]
    weights["confidence_head.proj.weight"] = torch.zeros(1, HIDDEN)
    with pytest.raises(CheckpointError) as told:
        read_head(folder(weights))
    assert "missing: hidden_norm.weight, layers.1.self_attn.k_norm.weight" in str(told.value)
    assert "superfluous: confidence_head.proj.weight" in str(told.value)


@pytest.mark.parametrize(
    ("own", "changes", "message"),
    [
        ({"mask_token_id": None}, {}, "mask_token_id"),
        ({"mask_token_id": 20}, {}, "20 of 20 tokens"),
        ({}, {"block_size": 1}, "block_size"),
        ({}, {"selector_rank": 8}, "selector_rank: 8"),
        ({"conv_kernel_size": 3}, {}, "conv_kernel_size: 3"),
        ({}, {"markov_rank": 3, "markov_head_type": "gated"}, "'gated'; 'vanilla' would work"),
        ({"target_layer_ids": None}, {"num_target_layers": None}, "neither dflash_config.target_layer_ids nor"),
        ({}, {"sliding_window": 64}, "sliding_window"),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused_by_name(folder, own, changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_head(folder(tensors(), own, **changes))


@pytest.mark.parametrize(
    "changes", [{}, {"causal": True}, {"from_anchor": True, "markov_rank": 4}], ids=["dflash", "jetspec", "dspark"]
)
def test_a_head_that_is_written_is_read_as_it_was(tmp_path, changes):
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    config = BlockConfig(
        **sizes, head_dim=DIM, vocab_size=VOCAB, layers=(2, 5), block_size=8, mask_token_id=3, num_layers=2, **changes
    )
    torch.manual_seed(0)
    write_dflash(tmp_path, HeadCheckpoint(BlockHead(config)), max_positions=64)
    read = read_head(tmp_path)
    assert read.config == config.model_copy(update={"max_positions": 64})
    torch.manual_seed(0)
    expected = BlockHead(config).state_dict()
    assert load_file(tmp_path / "model.safetensors").keys() == expected.keys()
    assert all(torch.equal(tensor, read.head.state_dict()[name]) for name, tensor in expected.items())


def test_a_head_that_the_layout_cannot_express_is_not_written(tmp_path):
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    config = BlockConfig(**sizes, head_dim=DIM, vocab_size=VOCAB, layers=(0, 5), block_size=8, mask_token_id=3)
    with pytest.raises(CheckpointError, match="no place for"):
        write_dflash(tmp_path, HeadCheckpoint(BlockHead(config)), max_positions=64)
