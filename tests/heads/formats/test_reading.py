"""Folders of draft heads as others publish them, and what is wrong with some."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import CheckpointError
from specdec.heads.checkpoint_path import locate_head
from specdec.heads.config import HeadConfig, Inputs
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.reading import read_head
from specdec.nn.rope import inverse_frequencies, rotate
from specdec.training.borrowed import Borrowed, save_head

HIDDEN, VOCAB, DRAFTS = 24, 16, 6
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "hidden_act": "silu",
}
EAGLE3 = {**LLAMA, "draft_vocab_size": DRAFTS}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "speculators_config": {},
    "draft_vocab_size": DRAFTS,
    "target_hidden_size": 32,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "transformer_layer_config": LLAMA,
}
KEPT = [0, 3, 5, 8, 9, 15]
OFFSETS = [0, 2, 3, 5, 5, 10]


def filled(shapes) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def eagle_tensors(*, bias=True, head_dim=6) -> dict[str, torch.Tensor]:
    wide = 4 * head_dim
    shapes = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.q_proj.weight": (wide, HIDDEN),
        "layers.0.self_attn.k_proj.weight": (wide // 2, HIDDEN),
        "layers.0.self_attn.v_proj.weight": (wide // 2, HIDDEN),
        "layers.0.self_attn.o_proj.weight": (HIDDEN, wide),
        "layers.0.mlp.gate_proj.weight": (40, HIDDEN),
        "layers.0.mlp.up_proj.weight": (40, HIDDEN),
        "layers.0.mlp.down_proj.weight": (HIDDEN, 40),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,),
    }
    return filled({**shapes, **({"fc.bias": (HIDDEN,)} if bias else {})})


def eagle3_tensors(layer="midlayer", width=HIDDEN) -> dict[str, torch.Tensor]:
    shapes = {
        "fc.weight": (HIDDEN, 3 * width),
        f"{layer}.hidden_norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (24, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (12, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (12, 2 * HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, 24),
        f"{layer}.mlp.gate_proj.weight": (40, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (40, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, 40),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFTS, HIDDEN),
    }
    drafted = torch.zeros(VOCAB, dtype=torch.bool)
    drafted[KEPT] = True
    return {**filled(shapes), "d2t": torch.tensor(OFFSETS), "t2d": drafted}


@pytest.fixture
def folder(tmp_path):
    def write(config, tensors, *, pickled=False):
        (tmp_path / "config.json").write_text(json.dumps(config))
        for old in (tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin"):
            old.unlink(missing_ok=True)
        if pickled:
            torch.save(tensors, tmp_path / "pytorch_model.bin")
        elif tensors:
            save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return write


def read_head_config(folder, layers=None) -> HeadConfig:
    return head_config(read_config(folder), layers)


def parameters(config: HeadConfig) -> int:
    with torch.device("meta"):
        head = EagleHead3(config) if config.layers else EagleHead(config)
    return sum(p.numel() for p in head.parameters())


@pytest.mark.parametrize(
    ("sizes", "more", "millions"),
    [
        ((4096, 11008, 32, 32), {"rope_scaling": None, "num_key_value_heads": 32, "pretraining_tp": 1}, 235.9),
        ((4096, 11008, 32, 32), {"pad_token_id": 0, "max_position_embeddings": 2048, "num_key_value_heads": None}, 235.9),
        ((5120, 13824, 40, 40), {"rms_norm_eps": 1e-5}, 369.6),
        ((8192, 28672, 64, 8), {"rms_norm_eps": 1e-5}, 989.9),
        ((6656, 17920, 52, 13), {}, 557.2),
        ((4096, 14336, 32, 8), {"bias": False, "rope_theta": 500000.0}, 251.7),
        ((4096, 14336, 32, 32), {}, 276.8),
    ],
)
def test_parameter_counts_of_published_eagle_configs(folder, sizes, more, millions):
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = {**LLAMA, **dict(zip(names, sizes, strict=True)), "vocab_size": 32000, **more}
    assert round(parameters(read_head_config(folder(config, {}))) / 1e6, 1) == millions


def test_the_parameter_count_of_the_published_eagle3_config(folder):
    config = {**EAGLE3, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"vocab_size": 128256, "draft_vocab_size": 32000}
    assert round(parameters(read_head_config(folder(config, {}), layers=(2, 16, 29))) / 1e6, 1) == 424.7


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("bias", [None, True, False])
def test_an_eagle_head_reads_as_published_and_a_missing_bias_key_means_a_bias(folder, pickled, bias):
    tensors = eagle_tensors(bias=bias is not False)
    config = LLAMA if bias is None else {**LLAMA, "bias": bias}
    read = read_head(folder(config, tensors, pickled=pickled))
    assert isinstance(read.head, EagleHead)
    assert read.config.fc_bias is (bias is not False)
    assert (read.draft_ids, read.embedding, read.lm_head) == (None, None, None)
    state = read.head.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)


def test_a_pickle_that_would_run_code_is_refused_unread(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    folder(LLAMA, {})
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_head(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", eagle_tensors())
def test_each_tensor_of_an_eagle_head_is_needed(folder, name):
    with pytest.raises(CheckpointError, match=name if name != "fc.weight" else "not an EAGLE head"):
        read_head(folder(LLAMA, {k: v for k, v in eagle_tensors().items() if k != name}))


@pytest.mark.parametrize("name", sorted(eagle3_tensors().keys() - {"t2d"}))
def test_each_tensor_of_an_eagle3_head_is_needed(folder, name):
    with pytest.raises(CheckpointError, match=rf"missing: {name}"):
        read_head(folder(EAGLE3, {k: v for k, v in eagle3_tensors().items() if k != name}), layers=(1, 2, 3))


def test_embeddings_and_the_lm_head_of_an_eagle_head_are_its_own_where_they_are_there(folder):
    own = {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN), "lm_head.weight": torch.randn(VOCAB, HIDDEN)}
    read = read_head(folder(LLAMA, {**eagle_tensors(), **own}))
    assert torch.equal(read.embedding, own["embed_tokens.weight"])
    assert torch.equal(read.lm_head, own["lm_head.weight"])


def test_missing_extra_and_misshapen_tensors_are_named_together(folder):
    tensors = eagle_tensors()
    del tensors["layers.0.mlp.up_proj.weight"]
    tensors["fc.bias"] = torch.zeros(7)
    tensors["layers.0.input_layernorm.weight"] = torch.ones(HIDDEN)
    with pytest.raises(CheckpointError) as raised:
        read_head(folder(LLAMA, tensors))
    for part in (
        "missing: layers.0.mlp.up_proj.weight",
        "superfluous: layers.0.input_layernorm.weight",
        "misshapen: fc.bias (7,), expected (24,)",
    ):
        assert part in str(raised.value)


def test_a_bias_that_the_config_denies_is_refused_and_so_are_misshapen_embeddings(folder):
    with pytest.raises(CheckpointError, match=r"superfluous: fc\.bias"):
        read_head(folder({**LLAMA, "bias": False}, eagle_tensors()))
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight \(15, 24\), expected \(16, 24\)"):
        read_head(folder(LLAMA, {**eagle_tensors(), "embed_tokens.weight": torch.zeros(15, HIDDEN)}))


def test_qwen2_heads_have_biases_of_q_k_and_v(folder):
    biases = {f"layers.0.self_attn.{n}_proj.bias": torch.randn(24 if n == "q" else 12) for n in "qkv"}
    assert read_head(folder({**LLAMA, "qkv_bias": True}, {**eagle_tensors(), **biases})).config.qkv_bias
    with pytest.raises(CheckpointError, match=r"q_proj\.bias"):
        read_head(folder(LLAMA, {**eagle_tensors(), **biases}))


def test_head_dim_need_not_be_the_width_by_the_heads(folder):
    assert read_head(folder({**LLAMA, "head_dim": 10}, eagle_tensors(head_dim=10))).config.head_dim == 10
    assert read_head_config(folder(LLAMA, {})).head_dim == 6


SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "layout",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **SCALING}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "llama3", **SCALING},
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **SCALING},
        },
    ],
)
def test_base_and_scaling_reach_the_rotation_in_every_layout(folder, layout):
    head = read_head(folder({**LLAMA, **layout}, eagle_tensors()), dtype=torch.bfloat16).head
    expected = inverse_frequencies(6, 5e5, {"rope_type": "llama3", **SCALING})
    found = head.layers[0].self_attn.frequencies
    assert found.dtype == torch.float32
    states = torch.ones(1, 1, 2, 6)
    positions = torch.tensor([[0, 1000]])
    assert torch.equal(rotate(states, positions, found), rotate(states, positions, expected))
    assert not torch.allclose(found, inverse_frequencies(6, 10000.0, None))


def test_without_a_base_it_is_ten_thousand_and_two_bases_are_refused(folder):
    assert read_head_config(folder(LLAMA, {})).rope_theta == 10000.0
    assert read_head_config(folder({**LLAMA, "rope_parameters": {"rope_type": "default"}}, {})).rope_scaling is None
    with pytest.raises(CheckpointError, match="several rope bases"):
        read_head_config(folder({**LLAMA, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, {}))
    with pytest.raises(CheckpointError, match="low_freq_factor"):
        read_head_config(folder({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {}))
    with pytest.raises(CheckpointError, match="dynamic"):
        read_head_config(folder({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 8.0}}, {}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "llama3", **SCALING, "factor": "x"}}, r"config\.json: rope_scaling\.factor: got 'x'"),
        ({"rope_scaling": {"rope_type": "llama3", **SCALING, "factor": 0}}, r"rope_scaling\.factor: got 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, r"rope_scaling\.factor: got nan"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling\.factor: it is missing"),
        ({"rope_scaling": {"rope_type": "llama3", **SCALING, "high_freq_factor": 1.0}}, "not below high_freq_factor"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, r"config\.json: rope scaling 'dynamic' is not known"),
        ({"rope_scaling": "linear"}, r"config\.json does not describe a head"),
        ({"rope_theta": float("inf")}, "rope_theta: .*finite"),
        ({"rope_theta": [1]}, "does not describe a head"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": "x"}}, "several rope bases: 10000.0, x"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps: .*finite"),
        ({"num_attention_heads": 0}, "lacks num_attention_heads"),
        ({"draft_vocab_size": 6, "eagle_config": [1]}, "does not describe a head"),
        ({"draft_vocab_size": 6, "eagle_aux_hidden_state_layer_ids": 3}, "does not describe a head"),
    ],
)
def test_a_setting_that_is_no_number_is_named_with_its_file(folder, changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_head_config(folder({**LLAMA, **changes}, {}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(HIDDEN, dtype=torch.int64), r"no floating-point numbers: fc\.bias"),
        (torch.full((HIDDEN,), float("nan")), r"have NaN or infinity: fc\.bias"),
        (torch.full((HIDDEN,), float("-inf")), r"have NaN or infinity: fc\.bias"),
    ],
)
def test_weights_that_are_no_finite_floating_point_numbers_are_named(folder, value, message):
    with pytest.raises(CheckpointError, match=message):
        read_head(folder(LLAMA, {**eagle_tensors(), "fc.bias": value}), dtype=torch.float32)


def test_a_pickle_that_is_junk_is_refused(folder):
    place = folder(LLAMA, {})
    for content in (b"junk", bytes(range(256))):
        (place / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(CheckpointError, match="the weights cannot be read"):
            read_head(place)


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_an_eagle3_head_reads_with_both_names_of_its_layer_and_offsets_become_ids(folder, layer):
    tensors = eagle3_tensors(layer)
    read = read_head(folder(EAGLE3, tensors), layers=(1, 2, 3))
    assert isinstance(read.head, EagleHead3)
    assert read.draft_ids.tolist() == KEPT
    assert torch.equal(read.lm_head, tensors["lm_head.weight"])
    assert torch.equal(read.head.midlayer.self_attn.q_proj.weight, tensors[f"{layer}.self_attn.q_proj.weight"])
    assert read.embedding is None


def test_the_speculators_format_reads_and_says_which_layers_it_fuses(folder):
    read = read_head(folder(SPECULATORS, eagle3_tensors("layers.0", width=32)))
    assert read.config.layers == (1, 2, 3)
    assert read.config.target_hidden_size == 32
    assert read.draft_ids.tolist() == KEPT
    assert not read.config.norm_before_residual


def test_a_residual_from_the_normed_state_changes_what_comes_out(folder):
    tensors = eagle3_tensors("layers.0", width=32) | {"layers.0.mlp.down_proj.weight": torch.zeros(HIDDEN, 40)}
    heads = [read_head(folder({**SPECULATORS, "norm_before_residual": on}, tensors)).head for on in (False, True)]
    torch.manual_seed(1)
    embedding, hidden = torch.randn(1, 2, HIDDEN), torch.randn(1, 2, HIDDEN)
    plain, normed = (head(embedding, hidden, torch.arange(2)[None]) for head in heads)
    torch.testing.assert_close(normed - plain, heads[0].midlayer.hidden_norm(hidden) - hidden)


@pytest.mark.parametrize("switch", ["fc_norm", "norm_output", "norm_before_fc"])
def test_a_rule_that_is_not_known_is_refused_rather_than_left_out(folder, switch):
    with pytest.raises(CheckpointError, match=switch):
        read_head_config(folder({**SPECULATORS, switch: True}, {}))
    with pytest.raises(CheckpointError, match=switch):
        read_head_config(folder({**EAGLE3, switch: True}, {}), layers=(1, 2, 3))
    with pytest.raises(CheckpointError, match="parallel_drafting"):
        read_head_config(folder({**EAGLE3, "eagle_config": {"parallel_drafting": True}}, {}), layers=(1, 2, 3))
    with pytest.raises(CheckpointError, match="parallel_drafts"):
        read_head_config(folder({**SPECULATORS, "parallel_drafts": 4}, {}))
    with pytest.raises(CheckpointError, match="dflash"):
        read_head_config(folder({**SPECULATORS, "speculators_model_type": "dflash"}, {}))


NUMBERS = {
    "sliding_window": {"sliding_window": 8, "layer_types": ["sliding_attention"]},
    "sliding_attention": {"sliding_window": 8, "layer_types": ["sliding_attention"]},
    "sliding_window: 8": {"sliding_window": 8},
    "final_logit_softcapping": {"final_logit_softcapping": 30.0},
    "attn_logit_softcapping": {"attn_logit_softcapping": 50.0},
    "logit_scale": {"logit_scale": 0.25},
    "logits_scaling": {"logits_scaling": 8},
    "query_pre_attn_scalar": {"query_pre_attn_scalar": 144},
    "clip_qkv": {"clip_qkv": 8.0},
    "parallel_drafting": {"parallel_drafting": True},
    "rope scaling 'yarn'": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_key_that_changes_numbers_is_refused_by_name(folder, name):
    inner = {**SPECULATORS, "transformer_layer_config": {**LLAMA, **NUMBERS[name]}}
    for data, layers in ((LLAMA, None), (EAGLE3, (1, 2, 3))):
        with pytest.raises(CheckpointError, match=name):
            read_head_config(folder({**data, **NUMBERS[name]}, {}), layers=layers)
    with pytest.raises(CheckpointError, match=name):
        read_head_config(folder(inner, {}))


@pytest.mark.parametrize(
    "more",
    [
        {"sliding_window": 8, "use_sliding_window": False},
        {"sliding_window": None, "layer_types": ["full_attention"]},
        {"sliding_window": 8, "layer_types": ["full_attention"], "max_window_layers": 28},
        {"final_logit_softcapping": None, "logit_scale": 1.0, "query_pre_attn_scalar": HIDDEN // 4},
        {"parallel_drafting": False},
    ],
)
def test_a_key_that_is_off_is_no_reason_to_refuse_a_head(folder, more):
    assert read_head_config(folder({**LLAMA, **more}, {})).kind == "eagle"
    assert read_head_config(folder({**SPECULATORS, "transformer_layer_config": {**LLAMA, **more}}, {})).kind == "eagle3"
    assert read_head_config(folder({**SPECULATORS, "parallel_drafting": False}, {})).kind == "eagle3"


def test_a_map_of_absolute_ids_is_not_taken_for_offsets(folder):
    tensors = eagle3_tensors()
    with pytest.raises(CheckpointError, match="offsets"):
        read_head(folder(EAGLE3, {**tensors, "d2t": torch.tensor(KEPT)}), layers=(1, 2, 3))
    with pytest.raises(CheckpointError, match="offsets"):
        read_head(folder(EAGLE3, {**tensors, "d2t": torch.zeros(6, dtype=torch.int64)}), layers=(1, 2, 3))
    with pytest.raises(CheckpointError, match="expected 6 integers"):
        read_head(folder(EAGLE3, {**tensors, "d2t": torch.tensor(OFFSETS[:5])}), layers=(1, 2, 3))


def test_a_head_of_the_whole_vocabulary_needs_no_map(folder):
    whole = {k: v for k, v in eagle3_tensors().items() if k not in ("d2t", "t2d")} | {"lm_head.weight": torch.randn(VOCAB, 24)}
    config = {**EAGLE3, "draft_vocab_size": VOCAB}
    assert read_head(folder(config, whole), layers=(1, 2, 3)).draft_ids is None
    unused = {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    assert read_head(folder(config, {**whole, **unused}), layers=(1, 2, 3)).draft_ids is None


def test_layers_come_from_the_config_or_from_the_caller_and_must_agree(folder):
    with pytest.raises(CheckpointError, match="L // 2"):
        read_head_config(folder(EAGLE3, {}))
    named = {**EAGLE3, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}}
    assert read_head_config(folder(named, {})).layers == (1, 4, 7)
    with pytest.raises(CheckpointError, match=r"fuses layers \[1, 4, 7\]; got layers \[1, 2, 3\]"):
        read_head_config(folder(named, {}), layers=(1, 2, 3))


def test_folders_that_hold_no_head_are_told_apart(folder, tmp_path):
    with pytest.raises(CheckpointError, match="not an EAGLE head: a model of 30 layers"):
        read_head_config(folder({**LLAMA, "num_hidden_layers": 30}, {}))
    with pytest.raises(CheckpointError, match=r"not an EAGLE head: its weights have no fc\.weight"):
        read_head(folder(LLAMA, {"model.embed_tokens.weight": torch.zeros(2, 2)}))
    with pytest.raises(CheckpointError, match="not an EAGLE head: config"):
        read_head_config(folder({"model_type": "bert"}, {}))
    with pytest.raises(CheckpointError, match="there are no weights"):
        read_head(folder(LLAMA, {}))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_head_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        read_head_config(tmp_path / "elsewhere")


def own_config(**changes) -> HeadConfig:
    sizes = {k: LLAMA[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")}
    return HeadConfig(**{**sizes, "head_dim": 6, "vocab_size": VOCAB, "embedding_scale": 7.0, **changes})


def saved(path, config, ids=None):
    head = EagleHead3(config) if config.layers else EagleHead(config)
    save_head(path, head, Borrowed(torch.zeros(VOCAB, HIDDEN), torch.zeros(DRAFTS, HIDDEN), ids))
    return head


@pytest.mark.parametrize(("layers", "own"), [((), False), ((), True), ((1, 2, 3), True)])
def test_what_training_saves_reads_back(tmp_path, layers, own):
    config = own_config(layers=layers, draft_vocab_size=DRAFTS, own_lm_head=own)
    head = saved(tmp_path, config, torch.tensor(KEPT))
    read = read_head(tmp_path)
    assert read.config == config
    assert read.draft_ids.tolist() == KEPT
    state = read.head.state_dict()
    assert all(torch.equal(state[name], tensor.bfloat16()) for name, tensor in head.state_dict().items())


def test_an_lm_head_of_ones_own_is_never_the_targets_instead(tmp_path):
    saved(tmp_path, own_config(own_lm_head=True))
    assert read_head(tmp_path).lm_head.shape == (VOCAB, HIDDEN)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        read_head(tmp_path)


def test_our_own_format_needs_its_map_and_takes_any_inputs(tmp_path):
    saved(tmp_path, own_config(draft_vocab_size=DRAFTS, inputs=Inputs.FEATURE_AND_UNSHIFTED_TOKEN))
    with pytest.raises(CheckpointError, match="missing: draft_ids"):
        read_head(tmp_path)
    saved(tmp_path, own_config(inputs=Inputs.FEATURE_AND_UNSHIFTED_TOKEN))
    assert read_head(tmp_path).config.inputs is Inputs.FEATURE_AND_UNSHIFTED_TOKEN


def test_a_name_is_a_folder_a_hub_id_or_the_shipped_head(tmp_path):
    assert locate_head(str(tmp_path), "eagle", download=False) == tmp_path
    assert locate_head("nobody/has-this-head", "eagle", download=False) is None
    with pytest.raises(CheckpointError, match="no 'medusa' head ships with this version; drafter 'eagle' has one"):
        locate_head("builtin", "medusa", download=False)
    for nothing in ("no-such-folder", str(tmp_path / "gone"), "a/b/c"):
        with pytest.raises(CheckpointError, match="no such folder"):
            locate_head(nothing, "eagle", download=False)


@pytest.mark.parametrize("stray", ["zz.safetensors", "aa.safetensors"])
def test_a_tensor_that_two_files_have_is_an_error_and_both_are_named(folder, stray):
    place = folder(LLAMA, eagle_tensors())
    save_file({"fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN), "more": torch.zeros(1)}, place / stray)
    first, second = sorted([stray, "model.safetensors"])
    with pytest.raises(CheckpointError, match=rf"{second} repeats tensors of {first} \(fc\.weight\)"):
        read_head(place)


def test_tensors_may_be_spread_over_files(folder):
    tensors = eagle_tensors()
    place = folder(LLAMA, {"fc.weight": tensors.pop("fc.weight")})
    save_file(tensors, place / "model-2.safetensors")
    assert read_head(place).config.hidden_size == HIDDEN


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_eight_bits_are_not_cast_without_their_scales(folder, dtype):
    with pytest.raises(CheckpointError, match=rf"fc\.bias \({dtype}\)"):
        read_head(folder(LLAMA, {**eagle_tensors(), "fc.bias": torch.ones(HIDDEN).to(dtype)}), dtype=torch.float32)


def test_sparse_weights_are_named(folder):
    tensors = {**eagle_tensors(), "fc.bias": torch.ones(HIDDEN).to_sparse()}
    with pytest.raises(CheckpointError, match=r"the weights are sparse: fc\.bias"):
        read_head(folder(LLAMA, tensors, pickled=True))


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "vocab_size", "draft_vocab_size"]
)
@pytest.mark.parametrize("size", [400_000_000, 10**400])
@pytest.mark.parametrize("layout", [EAGLE3, SPECULATORS])
def test_a_size_beyond_any_model_is_refused_before_anything_is_allocated(folder, key, size, layout):
    inner = layout.get("transformer_layer_config")
    changed = {**layout, key: size} if inner is None else {**layout, "transformer_layer_config": {**inner, key: size}}
    if inner is not None and key == "draft_vocab_size":
        changed = {**layout, key: size}
    with pytest.raises(CheckpointError, match=rf"{key}.*less than or equal to|heads cannot share"):
        read_head_config(folder(changed, {}), layers=(1, 2, 3))


@pytest.mark.parametrize("value", [10**400, -(10**400), "\ud800", [10**400]])
@pytest.mark.parametrize("key", ["factor", "rope_type", "low_freq_factor"])
def test_a_rope_setting_of_any_kind_ends_in_a_message(folder, key, value):
    scaling = {"rope_type": "llama3", **SCALING, key: value}
    with pytest.raises(CheckpointError):
        read_head_config(folder({**LLAMA, "rope_scaling": scaling}, {}))


@pytest.mark.parametrize("layers", [None, [1, 2, 3]])
def test_an_eagle3_config_without_the_key_starts_its_residual_before_the_norm(folder, layers):
    """As published heads are: those that start from the normed state say so."""
    config = {**EAGLE3, **({"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}} if layers else {})}
    assert "norm_before_residual" not in config
    read = read_head_config(folder(config, eagle3_tensors()), (1, 2, 3))
    assert not read.norm_before_residual
    assert read_head_config(folder({**config, "norm_before_residual": True}, eagle3_tensors()), (1, 2, 3)).norm_before_residual


def test_a_speculators_config_or_our_own_without_the_key_starts_its_residual_before_the_norm_too(folder):
    key = "norm_before_residual"
    own = head_config(read_config(folder({**SPECULATORS, key: True}, {}))).model_dump(mode="json")
    for config in (SPECULATORS, own):
        without = {name: value for name, value in config.items() if name != key}
        assert not read_head_config(folder(without, {})).norm_before_residual
        assert read_head_config(folder({**without, key: True}, {})).norm_before_residual
