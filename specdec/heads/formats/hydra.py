"""Hydra's layout, of its `mlp` and `prefix-mlp` heads: read and written.

The prefix layer is one layer of the base model's own sizes, which only the base model's config names.
*Source: zankner/Hydra, as published.*
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from specdec.errors import CheckpointError
from specdec.files.json_object import read_json_object
from specdec.files.paths import expanded, is_file
from specdec.heads.config import LayerConfig
from specdec.heads.formats.checkpoint import HeadCheckpoint, repeated_lm_head, scaled, tensors_of, write_folder
from specdec.heads.formats.llama_layer import layer_sizes, read_layer, validated_as
from specdec.heads.hydra import HydraConfig, HydraHead

PREFIX = "prefix_embeding_layer."
"""As it is spelled there."""

BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.((?:linear|res_connection)\.(?:weight|bias))")
LM_HEAD = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
OUR_BLOCK = re.compile(r"heads\.(\d+)\.(\d+)\.linear\.weight")
UNUSED = re.compile(r"prefix_embeding_layer\.(?:embed_tokens\.weight|(?:layers\.0\.self_attn\.)?rotary_emb\.inv_freq)")
"""What the class of the prefix layer brings, and never reads."""


def is_hydra(data: Mapping[str, Any]) -> bool:
    """Whether a config is of a published Hydra head."""
    return "hydra_num_heads" in data


def hydra_name(name: str, *, prefix: bool) -> str:
    """The name that a published tensor has here. prefix: of prefix-mlp, where dropout stands between the blocks."""
    if found := BLOCK.fullmatch(name):
        head, place, rest = found.groups()
        return f"heads.{head}.{int(place) // 2 if prefix else place}.{rest}"
    if found := LM_HEAD.fullmatch(name):
        return f"lm_heads.{found.group(1)}.{found.group(2)}"
    if name.startswith(PREFIX):
        return f"prefix.{name.removeprefix(PREFIX).removeprefix('layers.0.')}"
    return name


def published_name(name: str, *, prefix: bool) -> str:
    """The published name of one of our tensors."""
    if name.startswith("heads."):
        _, head, block, *rest = name.split(".")
        return ".".join(("hydra_mlp", head, str(2 * int(block) + 1 if prefix else block), *rest))
    if name.startswith("lm_heads."):
        _, head, kind = name.split(".")
        return f"hydra_lm_head.{head}.{'1.' if prefix else ''}{kind}"
    inner = name.removeprefix("prefix.")
    return name if inner == name else f"{PREFIX}{inner if inner.startswith('norm.') else f'layers.0.{inner}'}"


def has_prefix(data: Mapping[str, Any]) -> bool:
    """Whether the heads read a prefix layer."""
    return bool(data.get("hydra_head_arch", "mlp") == "prefix-mlp")


def spelling(data: Mapping[str, Any]) -> Callable[[str], str]:
    """From our names of tensors to those of a published folder."""
    prefix = has_prefix(data)
    return lambda name: published_name(name, prefix=prefix)


def renamed_hydra(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published head's tensors by our names, without those that are never read."""
    prefix = has_prefix(data)
    return {hydra_name(name, prefix=prefix): tensor for name, tensor in tensors.items() if not UNUSED.fullmatch(name)}


def read_hydra_config(folder: Path, data: Mapping[str, Any], published: Mapping[str, tuple[int, ...]]) -> HydraConfig:
    """The config of a published head. published: shapes of its tensors, by their names there."""
    _refuse_others(folder, data)
    prefix = has_prefix(data)
    shapes = {hydra_name(name, prefix=prefix): shape for name, shape in published.items()}
    blocks = [tuple(map(int, found.groups())) for name in shapes if (found := OUR_BLOCK.fullmatch(name))]
    if not blocks:
        raise CheckpointError(f"{folder}: not a Hydra head: its weights have no hydra_mlp")
    if "lm_heads.0.weight" not in shapes:
        raise CheckpointError(f"{folder}: the weights do not fit config.json; missing: {spelling(data)('lm_heads.0.weight')}")
    sizes = {
        "hidden_size": shapes[f"heads.{blocks[0][0]}.{blocks[0][1]}.linear.weight"][0],
        "num_heads": 1 + max(head for head, _ in blocks),
        "num_blocks": 1 + max(block for _, block in blocks),
        "vocab_size": shapes["lm_heads.0.weight"][0],
        "own_lm_head": True,
        "lm_head_bias": True,
    }
    if not prefix:
        return validated_as(HydraConfig, folder, sizes)
    layer = read_layer(folder, _with_base_config(folder, data))
    sizes |= {"max_positions": layer["max_positions"]}
    return validated_as(HydraConfig, folder, {**sizes, "prefix": {k: layer[k] for k in LayerConfig.model_fields if k in layer}})


def _refuse_others(folder: Path, data: Mapping[str, Any]) -> None:
    arch = data.get("hydra_head_arch", "mlp")
    if arch not in ("mlp", "prefix-mlp"):
        raise CheckpointError(f"{folder}: hydra_head_arch '{arch}' is not supported; mlp or prefix-mlp would work")
    if not data.get("grounded_heads", True):
        raise CheckpointError(f"{folder}: heads that are not grounded are not supported: they are Medusa's with a bias more")
    if data.get("hidden_state_offset", 0) != 0:
        raise CheckpointError(f"{folder}: hidden_state_offset {data['hidden_state_offset']!r} is not supported; 0 would work")


def _with_base_config(folder: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sizes of the prefix layer: the base model's, and what the head's own config says over them."""
    if "num_attention_heads" in data:
        return data
    base = str(data.get("base_model_name_or_path") or "")
    path = _config_of(folder, base)
    if path is None:
        raise CheckpointError(
            f"{folder}: the prefix layer has the sizes of its base model '{base}', whose config.json is not within reach; "
            "num_attention_heads and the other sizes in the head's config.json would work"
        )
    try:
        return {**read_json_object(path), **data}
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: it {error}") from error


def _config_of(folder: Path, base: str) -> Path | None:
    """The config.json of a model in a folder, also one beside the head's, or in the hub's local cache."""
    places = [expanded(base) / "config.json", folder / base / "config.json", folder.parent / base / "config.json"]
    if (found := next((path for path in places if base and is_file(path)), None)) is not None:
        return found
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(base, "config.json", local_files_only=True))
    except (OSError, ValueError):
        return None


def write_hydra(folder: Path, checkpoint: HeadCheckpoint, *, target: str, lm_head: Tensor | None = None) -> None:
    """Hydra heads in their authors' layout: every head with an LM head over the whole vocabulary; input scales are folded in.

    The sizes of a prefix layer are written into config.json, so that the base model's are not needed. Arguments as of
    `write_authors_medusa`. Raises CheckpointError for heads that the layout cannot express.
    """
    head, config = checkpoint.head, checkpoint.config
    if not isinstance(head, HydraHead) or not isinstance(config, HydraConfig):
        raise CheckpointError(f"Hydra's layout takes Hydra heads; this head is of kind '{config.kind}'")
    if config.own_lm_head and checkpoint.draft_ids is not None:
        raise CheckpointError("Hydra's layout has no place for a reduced vocabulary of the heads' own")
    tensors = _folded(config, tensors_of(checkpoint)) | repeated_lm_head(checkpoint, lm_head, config.num_heads)
    for number in range(config.num_heads):
        tensors.setdefault(f"lm_heads.{number}.bias", tensors[f"lm_heads.{number}.weight"].new_zeros(config.vocab_size))
    prefix = config.prefix is not None
    data = {
        "hydra_num_heads": config.num_heads,
        "hydra_num_layers": config.num_blocks,
        "hydra_head_arch": "prefix-mlp" if prefix else "mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "base_model_name_or_path": target,
    }
    layer = {} if config.prefix is None else layer_sizes(config.prefix) | {"vocab_size": config.vocab_size}
    if config.max_positions is not None:
        layer |= {"max_position_embeddings": config.max_positions}
    named = {published_name(name, prefix=prefix): tensor for name, tensor in tensors.items()}
    write_folder(folder, {**data, **layer}, named, weights="hydra_lm_head.safetensors")


def _folded(config: HydraConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters with the scales of the inputs in the first blocks."""
    found, size = dict(tensors), config.hidden_size
    for number in range(config.num_heads):
        for part in ("linear", "res_connection"):
            name = f"heads.{number}.0.{part}.weight"
            weight = found[name].clone()
            weight[:, :size] = scaled(weight[:, :size], config.feature_scale)
            weight[:, size:] = scaled(weight[:, size:], config.embedding_scale)
            found[name] = weight
    return found
