"""The one decoder layer of a published head as a LlamaConfig: sizes, rotary positions and fused layers, read and written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig, LayerConfig
from specdec.heads.formats.refused_keys import refused_keys

ConfigT = TypeVar("ConfigT", bound=BaseModel)

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def read_layer(folder: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and rope of a LlamaConfig in the old or the new layout."""
    missing = [name for name in SIZES if not isinstance(data.get(name), int) or data[name] < 1]
    if missing:
        raise CheckpointError(f"{folder}: not an EAGLE head: config.json lacks {', '.join(missing)}")
    refuse_switches(folder, data)
    heads = data["num_attention_heads"]
    theta, scaling = _rope(folder, data)
    return {
        **{name: data[name] for name in SIZES},
        "num_key_value_heads": data.get("num_key_value_heads") or heads,
        "head_dim": data.get("head_dim") or data["hidden_size"] // heads,
        "rms_norm_eps": data.get("rms_norm_eps", 1e-6),
        "max_positions": data.get("max_position_embeddings"),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "qkv_bias": bool(data.get("qkv_bias", False)),
    }


def _rope(folder: Path, data: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling: `rope_theta` and `rope_scaling`, or both within `rope_parameters`. No base means 10000."""
    old, new = data.get("rope_scaling") or {}, data.get("rope_parameters") or {}
    bases = {place["rope_theta"] for place in (data, old, new) if place.get("rope_theta") is not None}
    if len(bases) > 1:
        raise CheckpointError(f"{folder}: config.json names several rope bases: {', '.join(sorted(map(str, bases)))}")
    if any(place.get("partial_rotary_factor", 1.0) != 1.0 for place in (data, old, new)):
        raise CheckpointError(f"{folder}: partial rotary positions are not known to heads")
    scalings = [scaling for place in (old, new) if (scaling := _scaling(place)).get("rope_type") != "default"]
    if len(scalings) > 1 and scalings[0] != scalings[1]:
        raise CheckpointError(f"{folder}: rope_scaling and rope_parameters differ")
    return (bases.pop() if bases else 10000.0), (scalings[0] if scalings else None)


def _scaling(place: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling among rope settings, its kind always under `rope_type`."""
    kind = place.get("rope_type", place.get("type", "default"))
    others = {k: v for k, v in place.items() if k not in ("rope_theta", "partial_rotary_factor", "rope_type", "type")}
    return {"rope_type": kind, **others}


def read_fusion(
    folder: Path, data: Mapping[str, Any], named: list[int] | None, given: tuple[int, ...] | None
) -> Mapping[str, Any]:
    """What EAGLE-3 adds to a layer's config."""
    if named is not None:
        check_layers(folder, named, given)
    fused = given if named is None else tuple(named)
    if fused is None:
        raise CheckpointError(
            f"{folder}: config.json does not say which layers the head fuses; for a target of L layers, published heads take "
            "layers: [2, L // 2, L - 3]"
        )
    drafts = data.get("draft_vocab_size")
    return {
        "layers": fused,
        "fc_bias": False,
        "draft_vocab_size": drafts,
        "target_hidden_size": data.get("target_hidden_size"),
        "norm_before_residual": bool(data.get("norm_before_residual", False)),
        "own_lm_head": True,
    }


def check_layers(folder: Path, named: Sequence[int], given: tuple[int, ...] | None) -> None:
    """Raise CheckpointError unless the caller's layers, if any, are those that the config names."""
    if given is not None and list(given) != list(named):
        raise CheckpointError(
            f"{folder}: the head fuses layers {list(named)}; got layers {list(given)}; "
            "its config.json names them, so that drafter.layers may be left unset"
        )


def refuse_switches(folder: Path, data: Mapping[str, Any]) -> None:
    """Raise CheckpointError for keys that change the numbers in ways that are not computed here."""
    if on := refused_keys(data):
        raise CheckpointError(f"{folder}: the head needs what is not supported: {', '.join(on)}")


def validated(folder: Path, data: Mapping[str, Any]) -> HeadConfig:
    """The config of an EAGLE head. Raises CheckpointError for values that describe none, with all names."""
    return validated_as(HeadConfig, folder, data)


def validated_as(config_type: type[ConfigT], folder: Path, data: Mapping[str, Any]) -> ConfigT:
    """The config. Raises CheckpointError for values that describe no head, with all names."""
    try:
        return config_type.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'config'}: {fault['msg']}" for fault in error.errors())
        raise CheckpointError(f"{folder}: config.json does not describe a head: {faults}") from error


def layer_config(config: HeadConfig, max_positions: int, dtype: torch.dtype) -> dict[str, Any]:
    """A LlamaConfig of one layer."""
    return {
        "model_type": "llama",
        **layer_sizes(config),
        "vocab_size": config.vocab_size,
        "num_hidden_layers": 1,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def layer_sizes(layer: LayerConfig) -> dict[str, Any]:
    """What a LlamaConfig says of a layer, its rotary positions in the old and the new layout."""
    kind, settings = _rope_scaling(layer)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
    return {
        **{name: getattr(layer, name) for name in names},
        "rope_theta": layer.rope_theta,
        "rope_scaling": None if kind == "default" else {"type" if kind == "linear" else "rope_type": kind, **settings},
        "rope_parameters": {"rope_type": kind, **settings, "rope_theta": layer.rope_theta},
    }


def _rope_scaling(config: LayerConfig) -> tuple[str, dict[str, Any]]:
    """The kind of scaling and its settings. EAGLE's own reader takes exactly `type` and `factor` for a linear one."""
    scaling = dict(config.rope_scaling or {})
    older = scaling.pop("type", "default")
    return scaling.pop("rope_type", older), scaling
