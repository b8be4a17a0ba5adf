"""`block`: one-pass heads, which read a block of masks behind the last token and give a row for each depth."""

from collections.abc import Sequence
from typing import ClassVar

from specdec.errors import CheckpointError
from specdec.heads.architectures import Kind
from specdec.heads.block import BlockConfig
from specdec.heads.block_session import BlockSession, DraftingBlock, ready_block
from specdec.heads.loading import HeadOptions, declared_config, load_checkpoint, made_for
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions
from specdec.interfaces.proposals import DraftStart


class BlockOptions(HeadOptions):
    """Options of `block`."""

    kind: ClassVar[Kind] = "block"


class BlockDrafter(Drafter[BlockOptions]):
    """DFlash, JetSpec and DSpark: one pass of the head a step, however deep and wide the tree.

    *Source: arXiv 2602.06036 (DFlash), arXiv 2606.18394 (JetSpec), DSpark's published code.*
    """

    name: ClassVar[str] = "block"
    Options: ClassVar[type[PartOptions]] = BlockOptions

    def __init__(self, drafting: DraftingBlock) -> None:
        self._drafting = drafting

    @classmethod
    def declares(cls, options: BlockOptions) -> DrafterDeclaration:
        """Distributions from layer inputs, as many levels deep as a pass has rows."""
        config = declared_config(options)
        if not isinstance(config, BlockConfig):
            raise CheckpointError(
                f"'{options.head}' is not in the hub's local cache, so that its layers are not known; download the head first"
            )
        return DrafterDeclaration(
            Gives.DISTRIBUTIONS, Features(layers=config.layers), made_for=made_for(config), max_depth=config.depths
        )

    @classmethod
    def build(cls, options: BlockOptions, tools: BuildTools) -> "BlockDrafter":
        """Raises CheckpointError for files that hold no one-pass head, TargetMismatch where it is not the target's."""
        return cls(ready_block(load_checkpoint(options, tools.target)))

    def open(self, starts: Sequence[DraftStart]) -> BlockSession:
        """Feed the prompts' context rows to the head."""
        return BlockSession(self._drafting, starts)
