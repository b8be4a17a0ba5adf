"""The fused forward: the model's own numbers in fewer operations."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    OlmoConfig,
    Qwen2Config,
    Qwen3Config,
)

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.nn.fused_llama import fused_norm
from specdec.nn.kv_cache import KvCache
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.cache_adapter import slot_cache
from specdec.targets.fusable import not_fusable_because
from specdec.targets.fused_forward import FusedForward
from specdec.targets.fusing import fuse
from specdec.targets.model_call import ModelCall

SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip

ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}


def model_of(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2) if parameter.dim() > 1 else parameter.data.uniform_(0.5, 1.5)
    return model


FUSABLE = {
    "llama": LlamaConfig(**SIZES),
    "biased llama": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "scaled rotations": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    ),
    "heads of another width": LlamaConfig(**SIZES, head_dim=20),
    "every head its own keys": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "qwen2": Qwen2Config(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
}  # fmt: skip


def both(model, nodes, past=5):
    """Logits and hidden states of a random tree of so many nodes, by the model and fused."""
    call = ModelCall(model)
    torch.manual_seed(nodes)
    ids = torch.randint(0, 61, (2, past + nodes))
    positions = torch.arange(past + nodes).repeat(2, 1)
    mask = torch.zeros(2, 1, nodes, past + nodes, dtype=call.dtype)
    hidden = torch.rand(2, 1, nodes, nodes).triu(1) > 0
    mask[..., past:] = mask[..., past:].masked_fill(hidden, torch.finfo(call.dtype).min)
    wanted = Features(last=True, layers=(0, 2, 3))
    results = []
    for fused in (False, True):
        kv = KvCache(call.shapes, 2)
        cache = slot_cache(kv)
        kv.stage([0, 0], past)
        call(ids[:, :past], positions[:, :past], None, cache, Features())
        kv.lengths = [past, past]
        kv.stage([past, past], nodes)
        if fused:
            call.fused = FusedForward(call.model, list(call.layers), call.decoder)
        results.append(call(ids[:, past:], positions[:, past:], mask, cache, wanted))
    return results


@pytest.mark.parametrize("nodes", [1, 7, 70])
@pytest.mark.parametrize("family", FUSABLE)
def test_it_gives_the_models_own_logits_and_hidden_states(family, nodes):
    model = model_of(FUSABLE[family])
    assert not_fusable_because(model, list(model.model.layers), model.model) is None
    plain, fused = both(model, nodes)
    torch.testing.assert_close(fused.logits, plain.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused.hidden.last, plain.hidden.last, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused.hidden.layers, plain.hidden.layers, rtol=1e-4, atol=1e-4)


def test_weights_that_were_joined_stay_the_models_own():
    model = model_of(FUSABLE["biased llama"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fuse(assemble(model, RunSettings(16, None, probe=False, forward="model"), "").runtime, "fused")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    attention = model.model.layers[0].self_attn
    assert attention.k_proj.weight.untyped_storage().data_ptr() == attention.q_proj.weight.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Qwen3Config(**SIZES, head_dim=8), "Qwen3ForCausalLM is no class"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "not SiLU"),
        (GPT2Config(vocab_size=61, n_embd=48, n_layer=2, n_head=4, n_positions=64, eos_token_id=None), "GPT2LMHeadModel is no"),
        (
            Ministral3Config(
                **SIZES,
                rope_parameters={
                    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16,
                    "llama_4_scaling_beta": 0.5,
                },
            ),
            "Ministral3ForCausalLM is no class",
        ),
        (OlmoConfig(**SIZES, clip_qkv=0.1, eos_token_id=None), "OlmoForCausalLM is no class"),
        (LlamaConfig(**SIZES, clip_qkv=0.1), "config has clip_qkv: 0.1"),
        (LlamaConfig(**SIZES, rope_parameters={**ROPE, "llama_4_scaling_beta": 0.5}), "rope_parameters has llama_4"),
    ],
)  # fmt: skip
def test_a_model_of_another_structure_keeps_its_own_forward_or_is_refused(config, words):
    model = model_of(config)
    assert assemble(model, RunSettings(16, None, probe=True), "").runtime.call.fused is None
    with pytest.raises(TargetMismatch, match=words):
        assemble(model, RunSettings(16, None, probe=True, forward="fused"), "")


@pytest.mark.parametrize(
    "option", [{"rope_interleaved": False}, {"some_note": None}, {"unsloth_version": "2026.1"}, {"unk_token_id": 0}]
)
def test_keys_that_change_no_number_keep_the_fused_forward(option):
    assert assemble(model_of(LlamaConfig(**SIZES, **option)), RunSettings(16, None, probe=True), "").runtime.call.fused


def _patched(model):
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda states: 2 * type(mlp).forward(mlp, states)


def _hooked(model):
    model.model.layers[0].register_forward_hook(lambda *_: None)


def _another_norm(model):
    model.model.norm = torch.nn.LayerNorm(SIZES["hidden_size"])


def _another_class(model):
    model.model.layers[0].mlp.__class__ = type("LlamaMLP", (type(model.model.layers[0].mlp),), {})


@pytest.mark.parametrize("change", [_patched, _hooked, _another_norm, _another_class])
def test_a_model_with_a_module_of_another_make_keeps_its_own_forward(change):
    model = model_of(FUSABLE["llama"])
    change(model)
    assert not_fusable_because(model, list(model.model.layers), model.model) is not None
    assert assemble(model, RunSettings(16, None, probe=False), "").runtime.call.fused is None


def test_the_eps_is_the_modules_own():
    model = model_of(FUSABLE["llama"])
    model.model.layers[1].input_layernorm.variance_epsilon = 50.0
    model.model.norm.variance_epsilon = 5.0
    plain, fused = both(model, 7)
    torch.testing.assert_close(fused.logits, plain.logits, rtol=1e-4, atol=1e-4)


def test_a_fused_forward_that_cannot_be_built_leaves_the_models_own(monkeypatch):
    def fails(*_):
        raise AttributeError("no such part")

    monkeypatch.setattr("specdec.targets.fused_forward.fused_mlp", fails)
    model = model_of(FUSABLE["llama"])
    assert assemble(model, RunSettings(16, None, probe=True), "").runtime.call.fused is None
    with pytest.raises(TargetMismatch, match="AttributeError: no such part"):
        assemble(model, RunSettings(16, None, probe=True, forward="fused"), "")


def test_numbers_that_differ_near_the_end_of_the_context_only_are_found(monkeypatch):
    def late(self, states, positions):
        cos, sin = rotations(self, states, positions)
        return torch.where((positions > 100)[..., None, None], 0.5 * cos, cos), sin

    rotations = FusedForward._rotations
    monkeypatch.setattr(FusedForward, "_rotations", late)
    assert assemble(model_of(FUSABLE["llama"]), RunSettings(16, None, probe=True), "").runtime.call.fused is None


def test_a_model_whose_numbers_come_out_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr("specdec.targets.fused_forward.fused_norm", lambda weight, eps: fused_norm(weight, 50.0))
    model = model_of(FUSABLE["llama"])
    assert assemble(model, RunSettings(16, None, probe=True), "").runtime.call.fused is None
    with pytest.raises(TargetMismatch, match="differ"):
        assemble(model, RunSettings(16, None, probe=True, forward="fused"), "")


@pytest.mark.parametrize("kind", ["auto", "fused", "model"])
def test_forward_says_whose_it_is(kind):
    call = assemble(model_of(FUSABLE["llama"]), RunSettings(16, None, probe=True, forward=kind), "").runtime.call
    assert (call.fused is None) == (kind == "model")


def test_eager_attention_keeps_the_models_own_forward():
    model = model_of(FUSABLE["llama"])
    model.set_attn_implementation("eager")
    assert assemble(model, RunSettings(16, None, probe=True), "").runtime.call.fused is None
