"""A head's config.json, whoever wrote it: our own, or that of another project."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from specdec.errors import CheckpointError
from specdec.files.json_object import read_json_object
from specdec.heads.architectures import CONFIGS, AnyConfig, config_type
from specdec.heads.config import LayerConfig
from specdec.heads.formats.dflash import is_dflash, read_dflash_config
from specdec.heads.formats.eagle import is_eagle3, read_eagle_config
from specdec.heads.formats.hydra import is_hydra, read_hydra_config
from specdec.heads.formats.llama_layer import check_layers, validated, validated_as
from specdec.heads.formats.medusa import is_medusa, read_medusa_config
from specdec.heads.formats.speculators import read_speculators_config
from specdec.heads.formats.tensors import read_shapes
from specdec.heads.hydra import HydraConfig
from specdec.nn.rope import inverse_frequencies


@dataclass(frozen=True)
class ConfigFile:
    """The config.json of a head, as it was read. folder: where it lies."""

    folder: Path
    data: Mapping[str, Any]

    @property
    def is_published(self) -> bool:
        """Whether it is another project's, and not of our own format."""
        return self.own_kind is None and not _is_our_eagle(self.data)

    @property
    def own_kind(self) -> str | None:
        """What our own format says that it is; None for EAGLE's, which name no kind, and for published heads."""
        kind = self.data.get("kind")
        return kind if kind in CONFIGS else None

    @property
    def family(self) -> Literal["eagle", "medusa", "hydra", "block"]:
        """Which architecture it is of; EAGLE's generations are one family."""
        if self.own_kind == "hydra" or is_hydra(self.data):
            return "hydra"
        if self.own_kind == "block" or is_dflash(self.data):
            return "block"
        return "medusa" if self.own_kind == "medusa" or is_medusa(self.data) else "eagle"

    @property
    def fuses_layers(self) -> bool:
        """Whether it is of an EAGLE-3 head, even where it does not say which layers that fuses."""
        if self.family != "eagle":
            return False
        if _is_our_eagle(self.data):
            return bool(self.data.get("layers"))
        return self.data.get("speculators_model_type") == "eagle3" or is_eagle3(self.data)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Those of the weights beside it, by name: sizes that a published config leaves out."""
        return read_shapes(self.folder)


def read_config(folder: Path) -> ConfigFile:
    """The config.json in `folder`. Raises CheckpointError where there is none, or none that can be read."""
    try:
        return ConfigFile(folder, read_json_object(folder / "config.json"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: not a draft head: there is no config.json") from error
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: it {error}") from error


def head_config(file: ConfigFile, layers: tuple[int, ...] | None = None) -> AnyConfig:
    """What a config.json says. layers: those that an EAGLE-3 head fuses, where its config does not name them.

    Raises CheckpointError for one that describes no draft head, or one whose rules are not known here.
    """
    folder = file.folder
    try:
        config = _config(file, layers)
    except (AttributeError, TypeError, KeyError, ArithmeticError) as error:
        raise CheckpointError(f"{folder / 'config.json'} does not describe a head: {error}") from error
    layer = config.prefix if isinstance(config, HydraConfig) else config
    if isinstance(layer, LayerConfig):
        _check_rope(folder, layer)
    return config


def _check_rope(folder: Path, layer: LayerConfig) -> None:
    try:
        inverse_frequencies(layer.head_dim, layer.rope_theta, layer.rope_scaling)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error


def _config(file: ConfigFile, layers: tuple[int, ...] | None) -> AnyConfig:
    folder, data = file.folder, file.data
    if file.own_kind is not None:
        return validated_as(config_type(file.own_kind), folder, data)
    if file.family == "medusa":
        return read_medusa_config(folder, data, file.shapes)
    if file.family == "hydra":
        return read_hydra_config(folder, data, file.shapes)
    if file.family == "block":
        return read_dflash_config(folder, data, file.shapes)
    if _is_our_eagle(data):
        config = validated(folder, data)
        if config.layers:
            check_layers(folder, config.layers, layers)
        return config
    return (read_speculators_config if "speculators_model_type" in data else read_eagle_config)(folder, data, layers)


def _is_our_eagle(data: Mapping[str, Any]) -> bool:
    return "fc_bias" in data and "inputs" in data
