"""All architectures of draft heads, by their configs."""

from typing import Literal, TypeAlias

from specdec.heads.block import BlockConfig, BlockHead
from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.hydra import HydraConfig, HydraHead
from specdec.heads.medusa import MedusaConfig, MedusaHead

TrainedKind: TypeAlias = Literal["eagle", "eagle3", "medusa", "hydra", "block"]
"""What `specdec train` makes."""

Kind: TypeAlias = TrainedKind

DepthConfig: TypeAlias = MedusaConfig | HydraConfig
"""Of architectures with one head for each depth of a draft."""

TrainedConfig: TypeAlias = HeadConfig | DepthConfig | BlockConfig

AnyConfig: TypeAlias = TrainedConfig

DepthHead: TypeAlias = MedusaHead | HydraHead

TrainedHead: TypeAlias = EagleHead | EagleHead3 | DepthHead | BlockHead

AnyHead: TypeAlias = TrainedHead

TRAINED_CONFIGS: dict[str, type[DepthConfig | BlockConfig]] = {
    "medusa": MedusaConfig,
    "hydra": HydraConfig,
    "block": BlockConfig,
}

CONFIGS = TRAINED_CONFIGS
"""By `kind`, as config.json names it; EAGLE's name none."""


def new_head(config: AnyConfig) -> AnyHead:
    """A head of this config, with weights as torch makes them.

    On the meta device it takes no memory, whatever the config says of its sizes.
    """
    return trainable_head(config)


def trainable_head(config: TrainedConfig) -> TrainedHead:
    """The same of a head that can be trained."""
    if isinstance(config, BlockConfig):
        return BlockHead(config)
    if isinstance(config, MedusaConfig):
        return MedusaHead(config)
    if isinstance(config, HydraConfig):
        return HydraHead(config)
    return EagleHead3(config) if config.layers else EagleHead(config)


def config_type(kind: object) -> type[AnyConfig]:
    """What a config of our own format is read as; one that names no kind is of EAGLE."""
    return CONFIGS.get(str(kind), HeadConfig)


def trained_config_type(kind: object) -> type[TrainedConfig]:
    """The same of a head that can be trained."""
    return TRAINED_CONFIGS.get(str(kind), HeadConfig)
