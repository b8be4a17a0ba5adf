"""What other engines read: names, shapes and config as they expect them, and the same drafts after reading back."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.eagle import write_eagle
from specdec.heads.formats.reading import read_head
from specdec.heads.formats.speculators import write_speculators
from specdec.training.borrowed import Borrowed, save_head

HIDDEN, VOCAB, DRAFTS = 24, 16, 6
KEPT = [0, 3, 5, 8, 9, 15]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def checkpoint(*, ids=None, lm_head=None, embedding=None, **changes) -> HeadCheckpoint:
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = HeadConfig(**{**sizes, "vocab_size": VOCAB, "rope_theta": 5e5, **changes})
    head = EagleHead3(config) if config.layers else EagleHead(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 0.3)
    head.eval().requires_grad_(False)
    own = lm_head if head.lm_head is None else head.lm_head.weight
    return HeadCheckpoint(head, None if ids is None else torch.tensor(ids), embedding, own)


def drafts(read: HeadCheckpoint, embedding: torch.Tensor | None = None) -> torch.Tensor:
    """Two steps of the recurrence, and logits where the head has its own."""
    torch.manual_seed(1)
    table = torch.randn(VOCAB, HIDDEN)
    table = table if embedding is None else embedding
    width = (len(read.config.layers), HIDDEN) if read.config.layers else (HIDDEN,)
    features, positions = torch.randn(1, 5, *width), torch.arange(5)[None]
    table = read.embedding if read.embedding is not None else table
    hidden = read.head.input_projection(features)
    for ids in ([1, 5, 2, 7, 3], [4, 4, 8, 1, 0]):
        hidden = read.head(table[torch.tensor(ids)][None], hidden, positions)
    return hidden if read.lm_head is None else read.head.lm_head_states(hidden) @ read.lm_head.T


def same(first: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5 * max(1.0, float(second.abs().max())))


def test_native_eagle_has_no_bias_no_prefix_no_norms_and_scales_within_fc(tmp_path):
    mine = checkpoint(fc_bias=False, embedding_scale=7.0, feature_scale=0.5, draft_vocab_size=DRAFTS, ids=KEPT)
    write_eagle(tmp_path, mine, max_positions=2048)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "fc.weight": (24, 48),
        "layers.0.self_attn.q_proj.weight": (32, 24),
        "layers.0.self_attn.k_proj.weight": (16, 24),
        "layers.0.self_attn.v_proj.weight": (16, 24),
        "layers.0.self_attn.o_proj.weight": (24, 32),
        "layers.0.mlp.gate_proj.weight": (40, 24),
        "layers.0.mlp.up_proj.weight": (40, 24),
        "layers.0.mlp.down_proj.weight": (24, 40),
        "layers.0.post_attention_layernorm.weight": (24,),
    }
    same(tensors["fc.weight"][:, :24], 7.0 * mine.head.fc.weight[:, :24])
    same(tensors["fc.weight"][:, 24:], 0.5 * mine.head.fc.weight[:, 24:])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["model_type"], config["num_hidden_layers"], config["bias"]) == ("llama", 1, False)
    assert "draft_vocab_size" not in config
    read = read_head(tmp_path)
    assert read.draft_ids is None
    same(drafts(read), drafts(mine))


def test_a_bias_is_written_where_there_is_one_and_zeros_are_not(tmp_path):
    mine = checkpoint()
    write_eagle(tmp_path / "a", mine, max_positions=64)
    assert torch.equal(read_head(tmp_path / "a").head.fc.bias, mine.head.fc.bias)
    mine.head.fc.bias.zero_()
    write_eagle(tmp_path / "b", mine, max_positions=64)
    assert "fc.bias" not in load_file(tmp_path / "b" / "model.safetensors")
    same(drafts(read_head(tmp_path / "b")), drafts(mine))


def test_own_embeddings_and_lm_head_go_along(tmp_path):
    for changes in ({"lm_head": torch.randn(VOCAB, HIDDEN)}, {"own_lm_head": True}):
        mine = checkpoint(embedding=torch.randn(VOCAB, HIDDEN), **changes)
        write_eagle(tmp_path, mine, max_positions=64)
        read = read_head(tmp_path)
        assert torch.equal(read.lm_head, mine.lm_head)
        same(drafts(read), drafts(mine))


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": Inputs.FEATURE},
        {"inputs": Inputs.FEATURE_AND_UNSHIFTED_TOKEN},
        {"inputs": Inputs.TOKEN},
        {"draft_vocab_size": DRAFTS, "ids": KEPT, "lm_head": torch.zeros(DRAFTS, HIDDEN)},
        {"draft_vocab_size": DRAFTS, "ids": KEPT, "own_lm_head": True},
        {"layers": (1, 2, 3)},
    ],
)
def test_what_native_eagle_cannot_say_is_refused(tmp_path, changes):
    with pytest.raises(CheckpointError, match="native EAGLE-1"):
        write_eagle(tmp_path, checkpoint(**changes), max_positions=64)


@pytest.mark.parametrize("scaling", [None, LLAMA3, {"type": "linear", "factor": 4.0}])
def test_rotary_settings_are_written_in_the_old_and_the_new_layout(tmp_path, scaling):
    mine = checkpoint(rope_scaling=scaling)
    write_eagle(tmp_path, mine, max_positions=64)
    config = json.loads((tmp_path / "config.json").read_text())
    kind = "default" if scaling is None else scaling.get("rope_type", "linear")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 5e5
    assert config["rope_parameters"]["rope_type"] == kind
    for other in ("rope_scaling", "rope_parameters"):
        kept = {k: v for k, v in config.items() if k != other and k != "rope_theta"} | {"rope_theta": 5e5}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        same(drafts(read_head(tmp_path)), drafts(mine))
    if kind == "linear":
        assert config["rope_scaling"] == {"type": "linear", "factor": 4.0}


def test_speculators_eagle3_is_as_vllm_reads_it(tmp_path):
    mine = checkpoint(layers=(2, 4, 6), draft_vocab_size=DRAFTS, ids=KEPT, feature_scale=0.5, fc_bias=False, own_lm_head=True)
    write_speculators(tmp_path, mine, target="ORG/TARGET", max_positions=2048)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = [name for name in tensors if name.startswith("layers.0.")]
    assert len(layer) == 10
    assert tensors.keys() - layer == {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert tensors["d2t"].tolist() == [0, 2, 3, 5, 5, 10]
    assert tensors["d2t"].dtype == torch.int64
    assert (tensors["t2d"].dtype, int(tensors["t2d"].sum())) == (torch.bool, 6)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["norm_before_residual"] is False
    assert config["target_hidden_size"] == HIDDEN
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6]
    assert config["speculators_config"]["verifier"]["name_or_path"] == "ORG/TARGET"
    assert config["transformer_layer_config"]["vocab_size"] == VOCAB
    read = read_head(tmp_path)
    assert read.draft_ids.tolist() == KEPT
    same(drafts(read), drafts(mine))


def test_scaled_embeddings_are_written_scaled_and_must_be_given(tmp_path):
    mine = checkpoint(layers=(1, 2, 3), embedding_scale=7.0, own_lm_head=True)
    with pytest.raises(CheckpointError, match="give the target's embeddings"):
        write_speculators(tmp_path, mine, target="t", max_positions=64)
    table = torch.randn(VOCAB, HIDDEN)
    write_speculators(tmp_path, mine, target="t", max_positions=64, embedding=table)
    read = read_head(tmp_path)
    assert read.draft_ids is None
    same(read.embedding, 7.0 * table)
    same(drafts(read), drafts(mine, table))


CLEAN = """
import json, sys
from pathlib import Path
import torch
from specdec.heads.formats.reading import read_head
read = read_head(Path(sys.argv[1]), dtype=torch.float32)
torch.manual_seed(1)
table = torch.randn(16, 24)
width = (len(read.config.layers), 24) if read.config.layers else (24,)
features, positions = torch.randn(1, 5, *width), torch.arange(5)[None]
hidden = read.head.input_projection(features)
for ids in ([1, 5, 2, 7, 3], [4, 4, 8, 1, 0]):
    hidden = read.head(table[torch.tensor(ids)][None], hidden, positions)
logits = hidden if read.lm_head is None else read.head.lm_head_states(hidden) @ read.lm_head.T
print(json.dumps([None if read.draft_ids is None else read.draft_ids.tolist(),
                  logits.flatten().tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "ours"])
def test_a_clean_process_reads_the_same_drafts(tmp_path, kind):
    if kind == "eagle":
        mine = checkpoint(embedding_scale=3.0)
        write_eagle(tmp_path, mine, max_positions=64)
    elif kind == "ours":
        mine = checkpoint(embedding_scale=3.0, draft_vocab_size=DRAFTS, ids=KEPT, own_lm_head=True)
        for parameter in mine.head.parameters():
            parameter.data = parameter.bfloat16().float()
        mine = dataclasses.replace(mine, lm_head=mine.head.lm_head.weight)
        save_head(tmp_path, mine.head, Borrowed(torch.zeros(VOCAB, HIDDEN), mine.lm_head, mine.draft_ids))
    else:
        mine = checkpoint(layers=(1, 2, 3), draft_vocab_size=DRAFTS, ids=KEPT, own_lm_head=True)
        write_speculators(tmp_path, mine, target="t", max_positions=64)
    done = subprocess.run([sys.executable, "-c", CLEAN, str(tmp_path)], capture_output=True, text=True, check=True)
    ids, values = json.loads(done.stdout)
    assert ids == (None if kind == "eagle" else KEPT)
    same(torch.tensor(values), drafts(mine).flatten())


@pytest.mark.parametrize("shape", [(VOCAB, HIDDEN + 1), (VOCAB - 1, HIDDEN), (HIDDEN, VOCAB), (VOCAB,)])
def test_an_embedding_of_another_shape_is_refused_and_nothing_is_written(tmp_path, shape):
    wrong = torch.zeros(shape)
    mine = checkpoint(layers=(0, 2, 4), own_lm_head=True, embedding_scale=2.0)
    with pytest.raises(CheckpointError, match=rf"embed_tokens\.weight is torch\.float32 \({shape[0]},.*expected .*\(16, 24\)"):
        write_speculators(tmp_path / "out", mine, target="t", max_positions=64, embedding=wrong)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight"):
        write_speculators(
            tmp_path / "out", checkpoint(layers=(0, 2, 4), own_lm_head=True, embedding=wrong), target="t", max_positions=64
        )
    for given in ({"embedding": wrong}, {"lm_head": wrong}, {"embedding": torch.zeros(VOCAB, HIDDEN, dtype=torch.int64)}):
        with pytest.raises(CheckpointError, match=r"(embed_tokens|lm_head)\.weight"):
            write_eagle(tmp_path / "out", checkpoint(**given), max_positions=64)
    assert not (tmp_path / "out").exists()
