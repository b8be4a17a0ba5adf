"""Hydra folders as their authors lay them out: read, written, and refused by the names of their own tensors."""

import json

import pytest
import torch
from safetensors.torch import load_file

from specdec.errors import CheckpointError
from specdec.heads.config import LayerConfig
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.hydra import write_hydra
from specdec.heads.formats.reading import read_head
from specdec.heads.hydra import HydraConfig

HIDDEN, VOCAB = 8, 20
MLP = {
    "hydra_num_heads": 2,
    "hydra_num_layers": 2,
    "hydra_head_arch": "mlp",
    "grounded_heads": True,
    "hidden_state_offset": 0,
    "base_model_name_or_path": "base",
}
PREFIX_MLP = {**MLP, "hydra_head_arch": "prefix-mlp"}
BASE = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "max_position_embeddings": 64,
}


def tensors_of(*, prefix=False, heads=2, blocks=2) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        wide = HIDDEN * (head + 2)
        for block in range(blocks):
            at = f"hydra_mlp.{head}.{2 * block + 1 if prefix else block}"
            shapes[f"{at}.linear.weight"] = (HIDDEN, HIDDEN if block else wide)
            shapes[f"{at}.linear.bias"] = (HIDDEN,)
            if not block:
                shapes |= {f"{at}.res_connection.weight": (HIDDEN, wide), f"{at}.res_connection.bias": (HIDDEN,)}
        at = f"hydra_lm_head.{head}{'.1' if prefix else ''}"
        shapes |= {f"{at}.weight": (VOCAB, HIDDEN), f"{at}.bias": (VOCAB,)}
    if prefix:
        layer = "prefix_embeding_layer.layers.0."
        shapes |= {
            "prefix_embeding_layer.embed_tokens.weight": (VOCAB, HIDDEN),
            "prefix_embeding_layer.norm.weight": (HIDDEN,),
            f"{layer}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{layer}self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{layer}mlp.gate_proj.weight": (12, HIDDEN),
            f"{layer}mlp.up_proj.weight": (12, HIDDEN),
            f"{layer}mlp.down_proj.weight": (HIDDEN, 12),
            f"{layer}input_layernorm.weight": (HIDDEN,),
            f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path):
    def write(config, tensors, *, base=BASE):
        (tmp_path / "base").mkdir(exist_ok=True)
        (tmp_path / "base" / "config.json").write_text(json.dumps(base))
        place = tmp_path / "head"
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        torch.save(tensors, place / "hydra_lm_head.pt")
        return place

    return write


def test_mlp_heads_are_read_by_their_published_names(folder):
    place = folder(MLP, tensors_of())
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 2, "num_blocks": 2}
    assert head_config(read_config(place)) == HydraConfig(**sizes, own_lm_head=True, lm_head_bias=True)
    state, tensors = read_head(place).head.state_dict(), tensors_of()
    assert torch.equal(state["heads.1.0.res_connection.bias"], tensors["hydra_mlp.1.0.res_connection.bias"])
    assert torch.equal(state["heads.1.1.linear.weight"], tensors["hydra_mlp.1.1.linear.weight"])
    assert torch.equal(state["lm_heads.0.bias"], tensors["hydra_lm_head.0.bias"])


def test_a_prefix_layer_has_the_sizes_of_its_base_model_and_its_unread_tensors_are_left_out(folder):
    place = folder(PREFIX_MLP, tensors_of(prefix=True))
    config = head_config(read_config(place))
    layer = {"hidden_size": HIDDEN, "intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
    assert config.prefix == LayerConfig(**layer, rms_norm_eps=1e-6, rope_theta=500000.0)
    assert config.max_positions == 64
    state, tensors = read_head(place).head.state_dict(), tensors_of(prefix=True)
    assert torch.equal(state["heads.1.1.linear.weight"], tensors["hydra_mlp.1.3.linear.weight"])
    assert torch.equal(state["lm_heads.1.bias"], tensors["hydra_lm_head.1.1.bias"])
    assert torch.equal(
        state["prefix.self_attn.k_proj.weight"], tensors["prefix_embeding_layer.layers.0.self_attn.k_proj.weight"]
    )
    assert torch.equal(state["prefix.norm.weight"], tensors["prefix_embeding_layer.norm.weight"])
    nowhere = folder({**PREFIX_MLP, "base_model_name_or_path": "nobody/base"}, tensors_of(prefix=True))
    with pytest.raises(CheckpointError, match=r"sizes of its base model 'nobody/base', whose config\.json is not within reach"):
        head_config(read_config(nowhere))


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            MLP,
            {"hydra_mlp.1.1.linear.bias": None, "hydra_lm_head.1.bias": None},
            r"missing: hydra_lm_head\.1\.bias, hydra_mlp\.1",
        ),
        (MLP, {"hydra_mlp.0.1.res_connection.bias": torch.ones(8)}, r"superfluous: hydra_mlp\.0\.1\.res_connection\.bias"),
        (PREFIX_MLP, {"prefix_embeding_layer.norm.weight": None}, r"missing: prefix_embeding_layer\.norm\.weight"),
        (PREFIX_MLP, {"prefix_embeding_layer.norm.bias": torch.ones(8)}, r"superfluous: prefix_embeding_layer\.norm\.bias"),
        (PREFIX_MLP, {"hydra_mlp.0.3.linear.weight": torch.ones(8, 7)}, r"misshapen: hydra_mlp\.0\.3\.linear\.weight \(8, 7\)"),
        ({**MLP, "hydra_head_arch": "eagle-attn"}, {}, "hydra_head_arch 'eagle-attn' is not supported"),
        ({**MLP, "grounded_heads": False}, {}, "not grounded"),
        ({**MLP, "hidden_state_offset": 1}, {}, "hidden_state_offset 1 is not supported"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_its_own_names(folder, config, change, message):
    tensors = tensors_of(prefix=config is PREFIX_MLP)
    kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        read_head(folder(config, kept))


@pytest.mark.parametrize("config", [MLP, PREFIX_MLP])
def test_a_folder_comes_back_as_it_was_written_without_its_base_model(folder, tmp_path, config):
    tensors = tensors_of(prefix=config is PREFIX_MLP)
    read = read_head(folder(config, tensors))
    write_hydra(tmp_path / "out" / "head", read, target="nobody/base")
    written = load_file(tmp_path / "out" / "head" / "hydra_lm_head.safetensors")
    assert written.keys() == tensors.keys() - {"prefix_embeding_layer.embed_tokens.weight"}
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in written.items())
    assert read_head(tmp_path / "out" / "head").config == read.config


def test_input_scales_are_folded_and_a_borrowed_lm_head_is_written_out(tmp_path):
    from specdec.heads.formats.checkpoint import HeadCheckpoint
    from specdec.heads.hydra import HydraHead

    config = HydraConfig(hidden_size=8, vocab_size=20, num_heads=2, draft_vocab_size=3, embedding_scale=3.0, feature_scale=0.5)
    torch.manual_seed(0)
    checkpoint, shared = HeadCheckpoint(HydraHead(config), torch.tensor([1, 4, 6])), torch.randn(20, 8)
    write_hydra(tmp_path, checkpoint, target="t", lm_head=shared)
    again = read_head(tmp_path).head
    states, embeddings = torch.randn(5, 8), torch.randn(5, 2, 8)
    torch.testing.assert_close(again(1, states, embeddings), checkpoint.head(1, states, embeddings))
    assert torch.equal(again.lm_heads[1].weight, shared)
    assert not bool(again.lm_heads[1].bias.any())
    with pytest.raises(CheckpointError, match="give the target"):
        write_hydra(tmp_path, checkpoint, target="t")
