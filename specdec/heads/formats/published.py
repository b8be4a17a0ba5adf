"""Configs of draft heads: our own, those of published EAGLE-1 and EAGLE-3 checkpoints, and the speculators format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specdec.errors import CheckpointError
from specdec.files.json_object import read_json_object
from specdec.heads.config import HeadConfig
from specdec.heads.formats.refused_keys import refused_keys
from specdec.nn.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The config.json of a head, as it was read. folder: where it lies."""

    folder: Path
    data: Mapping[str, Any]

    @property
    def is_published(self) -> bool:
        """Whether it is another project's, and not of our own format."""
        return not _is_ours(self.data)

    @property
    def fuses_layers(self) -> bool:
        """Whether it is of an EAGLE-3 head, even where it does not say which layers that fuses."""
        if _is_ours(self.data):
            return bool(self.data.get("layers"))
        return self.data.get("speculators_model_type") == "eagle3" or _is_native_eagle3(self.data)


SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")

SPECULATORS_KEYS = frozenset(
    {
        *("architectures", "auto_map", "draft_vocab_size", "dtype", "eagle_aux_hidden_state_layer_ids", "embed_requires_grad"),
        *("fc_norm", "has_no_defaults_at_init", "norm_before_fc", "norm_before_residual", "norm_output", "parallel_drafting"),
        *("speculators_config", "speculators_model_type", "speculators_version", "target_hidden_size", "tie_word_embeddings"),
        *("torch_dtype", "transformer_layer_config", "transformers_version"),
    }
)
"""Keys of speculators' eagle3; a key that is not known may be a rule of the head, so that it is refused."""


def read_config(folder: Path) -> ConfigFile:
    """The config.json in `folder`. Raises CheckpointError where there is none, or none that can be read."""
    try:
        return ConfigFile(folder, read_json_object(folder / "config.json"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: not an EAGLE head: there is no config.json") from error
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: it {error}") from error


def head_config(file: ConfigFile, layers: tuple[int, ...] | None = None) -> HeadConfig:
    """What a config.json says. layers: those that an EAGLE-3 head fuses, where its config does not name them.

    Raises CheckpointError for one that describes no draft head, or one whose rules are not known here.
    """
    folder = file.folder
    try:
        config = _config(folder, file.data, layers)
    except (AttributeError, TypeError, KeyError, ArithmeticError) as error:
        raise CheckpointError(f"{folder / 'config.json'} does not describe a head: {error}") from error
    try:
        inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    return config


def _config(folder: Path, data: Mapping[str, Any], layers: tuple[int, ...] | None) -> HeadConfig:
    if _is_ours(data):
        config = _validated(folder, data)
        if config.layers:
            _check_layers(folder, config.layers, layers)
        return config
    return (_speculators if "speculators_model_type" in data else _native)(folder, data, layers)


def _is_ours(data: Mapping[str, Any]) -> bool:
    return "fc_bias" in data and "inputs" in data


def _is_native_eagle3(data: Mapping[str, Any]) -> bool:
    return data.get("draft_vocab_size") is not None or "eagle3" in str(data.get("architectures") or "").lower()


def _check_layers(folder: Path, named: Sequence[int], given: tuple[int, ...] | None) -> None:
    """Raise CheckpointError unless the caller's layers, if any, are those that the config names."""
    if given is not None and list(given) != list(named):
        raise CheckpointError(
            f"{folder}: the head fuses layers {list(named)}; got layers {list(given)}; "
            "its config.json names them, so that drafter.layers may be left unset"
        )


def _native(folder: Path, data: Mapping[str, Any], layers: tuple[int, ...] | None) -> HeadConfig:
    """EAGLE's own format: a LlamaConfig of one layer. The key `bias` is about `fc`, and where it is missing there is a bias."""
    _refuse_other_models(folder, data)
    if not _is_native_eagle3(data):
        return _validated(folder, {**_layer(folder, data), "fc_bias": data.get("bias", True)})
    settings = data.get("eagle_config") or {}
    named = data.get("eagle_aux_hidden_state_layer_ids") or settings.get("eagle_aux_hidden_state_layer_ids")
    return _validated(folder, {**_layer(folder, data), **_fusion(folder, data, named, layers)})


def _speculators(folder: Path, data: Mapping[str, Any], layers: tuple[int, ...] | None) -> HeadConfig:
    """The speculators format; `norm_before_residual` is false where it is missing, as its own library reads it."""
    kind = data["speculators_model_type"]
    if kind != "eagle3":
        raise CheckpointError(f"{folder}: not an EAGLE head: a '{kind}' of the speculators format; 'eagle3' would work")
    strangers = sorted(data.keys() - SPECULATORS_KEYS)
    if strangers:
        raise CheckpointError(f"{folder}: keys that are not known and may change the head: {', '.join(strangers)}")
    inner = data.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"{folder}: config.json lacks transformer_layer_config")
    _refuse_switches(folder, data)
    named = data.get("eagle_aux_hidden_state_layer_ids")
    return _validated(folder, {**_layer(folder, inner), **_fusion(folder, data, named, layers)})


def _fusion(folder: Path, data: Mapping[str, Any], named: list[int] | None, given: tuple[int, ...] | None) -> Mapping[str, Any]:
    """What EAGLE-3 adds to a layer's config."""
    if named is not None:
        _check_layers(folder, named, given)
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


def _layer(folder: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and rope of a LlamaConfig in the old or the new layout."""
    missing = [name for name in SIZES if not isinstance(data.get(name), int) or data[name] < 1]
    if missing:
        raise CheckpointError(f"{folder}: not an EAGLE head: config.json lacks {', '.join(missing)}")
    _refuse_switches(folder, data)
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


def _refuse_other_models(folder: Path, data: Mapping[str, Any]) -> None:
    layers = data.get("num_hidden_layers")
    if isinstance(layers, int) and layers != 1:
        raise CheckpointError(
            f"{folder}: not an EAGLE head: a model of {layers} layers; a head has one (drafter 'model' takes whole models)"
        )


def _refuse_switches(folder: Path, data: Mapping[str, Any]) -> None:
    if on := refused_keys(data):
        raise CheckpointError(f"{folder}: the head needs what is not supported: {', '.join(on)}")


def _validated(folder: Path, data: Mapping[str, Any]) -> HeadConfig:
    try:
        return HeadConfig.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'config'}: {fault['msg']}" for fault in error.errors())
        raise CheckpointError(f"{folder}: config.json does not describe a head: {faults}") from error
