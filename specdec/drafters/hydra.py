"""`hydra`: heads that each predict one of the next tokens from the target's last feature and the tokens between."""

from collections.abc import Sequence
from typing import ClassVar

from specdec.heads.architectures import Kind
from specdec.heads.hydra import HydraConfig
from specdec.heads.hydra_session import DraftingHydra, HydraSession, ready_hydra
from specdec.heads.loading import HeadOptions, declared_config, load_checkpoint, made_for
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions
from specdec.interfaces.proposals import DraftStart


class HydraOptions(HeadOptions):
    """Options of `hydra`."""

    kind: ClassVar[Kind] = "hydra"


class HydraDrafter(Drafter[HydraOptions]):
    """Hydra's heads: Medusa's, which also read the tokens down to each node.

    *Source: arXiv 2402.05109; with a prefix layer it is Hydra++.*
    """

    name: ClassVar[str] = "hydra"
    Options: ClassVar[type[PartOptions]] = HydraOptions

    def __init__(self, drafting: DraftingHydra) -> None:
        self._drafting = drafting

    @classmethod
    def declares(cls, options: HydraOptions) -> DrafterDeclaration:
        """Distributions from the last hidden state, as many levels deep as there are heads."""
        config = declared_config(options)
        return DrafterDeclaration(
            Gives.DISTRIBUTIONS,
            Features(last=True),
            unread=config is None,
            made_for=made_for(config),
            max_depth=config.num_heads if isinstance(config, HydraConfig) else None,
        )

    @classmethod
    def build(cls, options: HydraOptions, tools: BuildTools) -> "HydraDrafter":
        """Raises CheckpointError for files that hold no Hydra heads, TargetMismatch where they are not the target's."""
        loaded = load_checkpoint(options, tools.target)
        return cls(ready_hydra(loaded))

    def open(self, starts: Sequence[DraftStart]) -> HydraSession:
        """Feed the prompts' features to the prefix layer, where there is one."""
        return HydraSession(self._drafting, starts)
