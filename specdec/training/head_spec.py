"""The part of a training spec that says what the head is."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdec.heads.architectures import TrainedKind
from specdec.heads.block import MOST_LAYERS, MOST_ROWS
from specdec.heads.config import MAX_WIDTH, Inputs


class Section(BaseModel):
    """A part of a training spec; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HeadSpec(Section):
    """The shape of the head; sizes that are not given are the target's."""

    kind: TrainedKind = "eagle"
    inputs: Annotated[Inputs, Field(description="what the head sees (the paper's ablation)")] = Inputs.FEATURE_AND_SHIFTED_TOKEN
    intermediate_size: Annotated[int | None, Field(ge=1)] = None
    num_attention_heads: Annotated[int | None, Field(ge=1)] = None
    num_key_value_heads: Annotated[int | None, Field(ge=1)] = None
    fc_bias: bool = False
    layers: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(description="eagle3, block: layers whose inputs are read; unset: [2, L // 2, L - 3] of L, others below 7"),
    ] = ()
    draft_vocab_size: Annotated[int | None, Field(ge=1, description="most frequent tokens; null: all")] = 8192
    train_lm_head: Annotated[
        bool | None,
        Field(description="the LM head starts as the target's rows and is trained; unset: for EAGLE-3, which has its own"),
    ] = None
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    num_heads: Annotated[
        int | None, Field(ge=1, le=16, description="medusa, hydra: tokens beyond the next that are predicted; unset: 4")
    ] = None
    num_blocks: Annotated[int | None, Field(ge=1, le=16, description="medusa, hydra: blocks of a head; unset: 1")] = None
    prefix: Annotated[bool, Field(description="hydra: a decoder layer over the features, as in Hydra++")] = False
    num_layers: Annotated[int | None, Field(ge=1, le=MOST_LAYERS, description="block: decoder layers; unset: 1")] = None
    block_size: Annotated[
        int | None, Field(ge=2, le=MOST_ROWS, description="block: the last token and the masks; unset: 8")
    ] = None
    mask_token_id: Annotated[
        int | None, Field(ge=0, description="block: whose embedding stands for a mask; unset: the last of the vocabulary")
    ] = None
    causal: Annotated[bool, Field(description="block: a row sees the block up to itself (JetSpec)")] = False
    from_anchor: Annotated[bool, Field(description="block: the last token's own row drafts too (DSpark)")] = False
    markov_rank: Annotated[int | None, Field(ge=1, le=MAX_WIDTH, description="block: of DSpark's bias by token")] = None

    @model_validator(mode="after")
    def _of_its_kind(self) -> "HeadSpec":
        if self.kind not in FUSING and self.layers:
            raise ValueError(f"layers: a head of kind '{self.kind}' fuses none; kind: eagle3 would work")
        others = KEYS_OF_OTHERS[self.kind] + (SIZES_OF_LAYERS if self.kind == "hydra" and not self.prefix else ())
        strangers = [key for key in others if getattr(self, key) != HeadSpec.model_fields[key].default]
        if strangers:
            raise ValueError(f"{', '.join(strangers)}: a head of kind '{self.kind}' has none")
        if self.kind == "eagle3":
            self._check_eagle3()
        return self

    def _check_eagle3(self) -> None:
        if self.inputs is not Inputs.FEATURE_AND_SHIFTED_TOKEN:
            raise ValueError(f"inputs: EAGLE-3 takes features and shifted tokens, got '{self.inputs}'")
        if self.fc_bias:
            raise ValueError("fc_bias: the projection of EAGLE-3 has no bias")
        if self.train_lm_head is False:
            raise ValueError("train_lm_head: EAGLE-3 always trains an LM head of its own")


SIZES_OF_LAYERS = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "rope_theta")
BY_DEPTH = ("num_heads", "num_blocks", "prefix")
OF_BLOCKS = ("num_layers", "block_size", "mask_token_id", "causal", "from_anchor", "markov_rank")
FUSING = ("eagle3", "block")
"""Kinds that read the inputs of several layers of the target."""

KEYS_OF_OTHERS: dict[TrainedKind, tuple[str, ...]] = {
    "eagle": (*BY_DEPTH, *OF_BLOCKS),
    "eagle3": (*BY_DEPTH, *OF_BLOCKS),
    "medusa": ("inputs", "fc_bias", "prefix", *SIZES_OF_LAYERS, *OF_BLOCKS),
    "hydra": ("inputs", "fc_bias", *OF_BLOCKS),
    "block": ("inputs", "fc_bias", "train_lm_head", *BY_DEPTH),
}
"""What each kind of head has not."""
