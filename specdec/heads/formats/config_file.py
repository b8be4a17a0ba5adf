"""A head's config.json, whoever wrote it: our own, EAGLE's, or that of the speculators library."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import CheckpointError
from specdec.files.json_object import read_json_object
from specdec.heads.config import HeadConfig
from specdec.heads.formats.eagle import is_eagle3, read_eagle_config
from specdec.heads.formats.llama_layer import check_layers, validated
from specdec.heads.formats.speculators import read_speculators_config
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
        return self.data.get("speculators_model_type") == "eagle3" or is_eagle3(self.data)


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
        config = validated(folder, data)
        if config.layers:
            check_layers(folder, config.layers, layers)
        return config
    return (read_speculators_config if "speculators_model_type" in data else read_eagle_config)(folder, data, layers)


def _is_ours(data: Mapping[str, Any]) -> bool:
    return "fc_bias" in data and "inputs" in data
