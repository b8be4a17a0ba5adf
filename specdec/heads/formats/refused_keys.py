"""Keys of a published head's config that change its numbers, in ways that are not computed here: refused by name."""

from collections.abc import Iterator, Mapping
from typing import Any

SWITCHES = (
    *("attention_bias", "mlp_bias", "norm_before_fc", "fc_norm", "norm_output", "use_qk_norm", "qk_norm", "qk_layernorm"),
    *("parallel_drafting", "final_logit_softcapping", "attn_logit_softcapping", "clip_qkv", "llama_4_scaling_beta"),
)
"""Off where they are missing, null, false or 0."""

FACTORS = (
    *("logit_scale", "logits_scaling", "lm_head_multiplier", "embedding_multiplier", "residual_multiplier"),
    *("attention_multiplier", "query_pre_attn_scalar"),
)
"""Without effect where they are missing, null or neutral."""

ROUNDING = 1e-6


def refused_keys(data: Mapping[str, Any]) -> list[str]:
    """What in the config of a head, or of its layer, asks for numbers that would be left out."""
    found = [f"{name}: {data[name]!r}" for name in SWITCHES if data.get(name)]
    found += [f"{name}: {data[name]!r}" for name in FACTORS if data.get(name) is not None and not _is_neutral(name, data)]
    if data.get("hidden_act", "silu") not in ("silu", "swish"):
        found.append(f"hidden_act: {data['hidden_act']}")
    found += _windows(data)
    settings = data.get("eagle_config")
    return found + (refused_keys(settings) if isinstance(settings, Mapping) else [])


def _is_neutral(name: str, data: Mapping[str, Any]) -> bool:
    """Whether a factor changes nothing: 1, or what attention takes without it."""
    width = data.get("head_dim") or data.get("hidden_size", 0) // (data.get("num_attention_heads") or 1)
    if name == "attention_multiplier":
        return bool(abs(data[name] ** 2 * width - 1) < ROUNDING)
    return bool(data[name] == (width if name == "query_pre_attn_scalar" else 1))


def _windows(data: Mapping[str, Any]) -> Iterator[str]:
    """Layers that do not see all that comes before; a window that nothing slides by has no effect."""
    kinds = data.get("layer_types")
    others = sorted({str(kind) for kind in kinds} - {"full_attention"}) if isinstance(kinds, list) else []
    window = data.get("sliding_window")
    if others:
        yield f"layer_types: {', '.join(others)} (sliding_window: {window!r})"
    elif window is not None and kinds is None and data.get("use_sliding_window", True):
        yield f"sliding_window: {window!r}"
