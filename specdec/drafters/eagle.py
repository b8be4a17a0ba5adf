"""`eagle`: a head that predicts the target's next feature, drafting at the second-to-top layer."""

from collections.abc import Sequence
from typing import ClassVar

from specdec.heads.architectures import Kind
from specdec.heads.config import HeadConfig
from specdec.heads.loading import HeadOptions, declared_config, load_head, made_for
from specdec.heads.session import DraftingHead, HeadSession
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions
from specdec.interfaces.proposals import DraftStart


class EagleOptions(HeadOptions):
    """Options of `eagle`."""

    kind: ClassVar[Kind] = "eagle"


class EagleDrafter(Drafter[EagleOptions]):
    """EAGLE's head, which serves EAGLE-2 too: there only the tree differs.

    *Source: arXiv 2401.15077; as a dynamic tree 2406.16858.*
    """

    name: ClassVar[str] = "eagle"
    Options: ClassVar[type[PartOptions]] = EagleOptions

    def __init__(self, drafting: DraftingHead) -> None:
        self._drafting = drafting

    @classmethod
    def declares(cls, options: EagleOptions) -> DrafterDeclaration:
        """Distributions from the last hidden state, unless config.json says that the head reads tokens only."""
        config = declared_config(options)
        reads = not isinstance(config, HeadConfig) or config.inputs.has_feature
        return DrafterDeclaration(Gives.DISTRIBUTIONS, Features(last=reads), unread=config is None, made_for=made_for(config))

    @classmethod
    def build(cls, options: EagleOptions, tools: BuildTools) -> "EagleDrafter":
        """Raises CheckpointError for files that hold no EAGLE-1 head, TargetMismatch where it is not the target's."""
        return cls(load_head(options, tools.target))

    def open(self, starts: Sequence[DraftStart]) -> HeadSession:
        """Feed the prompts' pairs to the head."""
        return HeadSession(self._drafting, starts)
