"""`medusa`: heads that each predict one of the next tokens from the target's last feature alone."""

from collections.abc import Sequence
from typing import ClassVar

from specdec.heads.architectures import Kind
from specdec.heads.loading import HeadOptions, declared_config, load_checkpoint, made_for
from specdec.heads.medusa import MedusaConfig
from specdec.heads.medusa_session import DraftingMedusa, MedusaSession, ready_medusa
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions
from specdec.interfaces.proposals import DraftStart


class MedusaOptions(HeadOptions):
    """Options of `medusa`."""

    kind: ClassVar[Kind] = "medusa"


class MedusaDrafter(Drafter[MedusaOptions]):
    """Medusa's heads: all nodes of one depth share one distribution, whatever their parents.

    *Source: arXiv 2401.10774.*
    """

    name: ClassVar[str] = "medusa"
    Options: ClassVar[type[PartOptions]] = MedusaOptions

    def __init__(self, drafting: DraftingMedusa) -> None:
        self._drafting = drafting

    @classmethod
    def declares(cls, options: MedusaOptions) -> DrafterDeclaration:
        """Distributions from the last hidden state, as many levels deep as there are heads."""
        config = declared_config(options)
        return DrafterDeclaration(
            Gives.DISTRIBUTIONS,
            Features(last=True),
            unread=config is None,
            made_for=made_for(config),
            max_depth=config.num_heads if isinstance(config, MedusaConfig) else None,
        )

    @classmethod
    def build(cls, options: MedusaOptions, tools: BuildTools) -> "MedusaDrafter":
        """Raises CheckpointError for files that hold no Medusa heads, TargetMismatch where they are not the target's."""
        loaded = load_checkpoint(options, tools.target)
        return cls(ready_medusa(loaded))

    def open(self, starts: Sequence[DraftStart]) -> MedusaSession:
        """Nothing is computed until the first question."""
        return MedusaSession(self._drafting, starts)
