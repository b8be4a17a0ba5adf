"""`eagle3`: a head on fused low, middle and high features of the target, with a recurrence and an LM head of its own."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.errors import CheckpointError
from specdec.heads.architectures import Kind
from specdec.heads.loading import HeadOptions, declared_config, load_head, made_for
from specdec.heads.session import DraftingHead, HeadSession
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions
from specdec.interfaces.proposals import DraftStart


class Eagle3Options(HeadOptions):
    """Options of `eagle3`."""

    kind: ClassVar[Kind] = "eagle3"

    layers: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...] | None,
        Field(min_length=1, description="decoder layers whose inputs the head fuses, where its config.json names none"),
    ] = None


class Eagle3Drafter(Drafter[Eagle3Options]):
    """EAGLE-3's head: it predicts tokens directly, from several layers of the target at once.

    *Source: arXiv 2503.01840.*
    """

    name: ClassVar[str] = "eagle3"
    Options: ClassVar[type[PartOptions]] = Eagle3Options

    def __init__(self, drafting: DraftingHead) -> None:
        self._drafting = drafting

    @classmethod
    def declares(cls, options: Eagle3Options) -> DrafterDeclaration:
        """Distributions from the inputs of the layers that config.json or the options name."""
        config = declared_config(options, options.layers)
        layers = options.layers if config is None else config.layers
        if layers is None:
            raise CheckpointError(
                f"'{options.head}' is not in the hub's local cache, so that its layers are not known; "
                "name them (layers: [2, L // 2, L - 3] for a target of L layers), or download the head first"
            )
        features = Features(layers=layers)
        return DrafterDeclaration(Gives.DISTRIBUTIONS, features, unread=config is None, made_for=made_for(config))

    @classmethod
    def build(cls, options: Eagle3Options, tools: BuildTools) -> "Eagle3Drafter":
        """Raises CheckpointError for files that hold no EAGLE-3 head, TargetMismatch where it is not the target's."""
        return cls(load_head(options, tools.target, options.layers))

    def open(self, starts: Sequence[DraftStart]) -> HeadSession:
        """Feed the prompts' pairs to the head."""
        return HeadSession(self._drafting, starts)
