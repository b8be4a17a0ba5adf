"""Whose forward the fused one may stand in for: models of known classes, whose configs hold no key that is not known here.

A comparison of numbers alone would be too short: a rule may show beyond the original length, or with large activations only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.targets.capability import text_config
from specdec.targets.context import rope_settings

FAMILIES = ("llama", "mistral", "qwen2")
"""Modeling files of transformers whose layers are those of the fused forward."""

ROTARY = "model.rotary_emb"
"""The module whose hooks the fused forward runs too."""

TORCH_MODULES = (nn.Linear, nn.Embedding, nn.ModuleList)

READ = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "hidden_act", "rms_norm_eps", "attention_bias", "mlp_bias", "tie_word_embeddings"),
        *("max_position_embeddings", "original_max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta"),
        *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    }
)
"""Keys that the fused forward reads, or that show in the modules, the rotations or the masks which it gets."""

IRRELEVANT = frozenset(
    {
        *("architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "return_dict", "is_llama_config"),
        *("output_hidden_states", "output_attentions", "use_cache", "chunk_size_feed_forward", "is_encoder_decoder"),
        *("id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task", "tokenizer_class"),
        *("initializer_range", "attention_dropout", "pretraining_tp"),
        *("max_length", "max_sequence_length", "model_max_length", "tokenizer_model_max_length", "torchscript", "use_bfloat16"),
        *("do_sample", "temperature", "top_k", "top_p", "transformers.js_config", "unsloth_version", "unsloth_fixed"),
    }
)
"""Keys that change no number of a forward; nor does one that ends in `_token_id`."""

ROPE_READ = frozenset(
    {
        *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor"),
        *("short_factor", "long_factor"),
    }
)
"""Keys of the rotary positions that show in the model's own cosines and sines."""


def not_fusable_because(model: Any, layers: Sequence[nn.Module], decoder: nn.Module | None) -> str | None:
    """Why the model may compute something else than the fused forward, or None."""
    if getattr(model, "hf_device_map", None) is not None:
        return "it is spread over devices"
    family = next((name for name in FAMILIES if type(model).__module__ == _modeling(name)), None)
    if family is None or decoder is None:
        return f"{type(model).__name__} is no class that is known to be fusable"
    if (key := _strange_key(text_config(model.config))) is not None:
        return f"its config has {key}, whose meaning is not known here"
    for name, module in model.named_modules():
        if not name.endswith(".act_fn") and type(module).__module__ != _modeling(family) and type(module) not in TORCH_MODULES:
            return f"its module {name} is a {type(module).__name__}"
        if "forward" in vars(module) or (name != ROTARY and (module._forward_hooks or module._forward_pre_hooks)):
            return f"its {f'module {name}' if name else 'model'} has hooks or a forward of its own"
    return next(filter(None, map(_activation, layers)), None)


def _modeling(family: str) -> str:
    return f"transformers.models.{family}.modeling_{family}"


def _strange_key(config: Any) -> str | None:
    """A key with a value that is not known to leave the numbers as they are; one that is off changes nothing."""
    data = config.to_dict()
    places: list[tuple[str, Mapping[str, Any], frozenset[str]]] = [("", data, READ | IRRELEVANT)]
    places += [("rope_parameters has ", settings, ROPE_READ) for settings in rope_settings(config)]
    strange: Iterator[str] = (
        f"{where}{key}: {value!r}"
        for where, settings, known in places
        for key, value in settings.items()
        if key not in known and not key.startswith("_") and not key.endswith("_token_id") and value not in (None, False)
    )
    return next(strange, None)


def _activation(layer: Any) -> str | None:
    weight = layer.mlp.gate_proj.weight
    probe: Tensor = torch.linspace(-3, 3, 64, dtype=weight.dtype, device=weight.device)
    return None if torch.equal(layer.mlp.act_fn(probe), functional.silu(probe)) else "its activation is not SiLU"
