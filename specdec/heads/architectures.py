"""All architectures of draft heads, by their configs."""

from typing import Literal, TypeAlias

from specdec.heads.config import HeadConfig
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import EagleHead3
from specdec.heads.hydra import HydraConfig, HydraHead
from specdec.heads.medusa import MedusaConfig, MedusaHead

Kind: TypeAlias = Literal["eagle", "eagle3", "medusa", "hydra"]

DepthConfig: TypeAlias = MedusaConfig | HydraConfig
"""Of architectures with one head for each depth of a draft."""

AnyConfig: TypeAlias = HeadConfig | DepthConfig

DepthHead: TypeAlias = MedusaHead | HydraHead

AnyHead: TypeAlias = EagleHead | EagleHead3 | DepthHead

CONFIGS: dict[str, type[DepthConfig]] = {"medusa": MedusaConfig, "hydra": HydraConfig}
"""By `kind`, as config.json names it; EAGLE's name none."""


def new_head(config: AnyConfig) -> AnyHead:
    """A head of this config, with weights as torch makes them.

    On the meta device it takes no memory, whatever the config says of its sizes.
    """
    if isinstance(config, MedusaConfig):
        return MedusaHead(config)
    if isinstance(config, HydraConfig):
        return HydraHead(config)
    return EagleHead3(config) if config.layers else EagleHead(config)


def config_type(kind: object) -> type[AnyConfig]:
    """What a config of our own format is read as; one that names no kind is of EAGLE."""
    return CONFIGS.get(str(kind), HeadConfig)
