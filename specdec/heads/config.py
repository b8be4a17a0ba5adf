"""What draft heads are, apart from their weights: what is said of all of them, and of EAGLE's."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_WIDTH, MAX_HEAD_DIM, MAX_VOCAB = 1 << 20, 1 << 14, 1 << 24
"""Sizes beyond those of any model, so that a config that lies cannot make its reader allocate without end."""


class Inputs(StrEnum):
    """What a head sees beside its cache (arXiv 2401.15077, figure 8). Shifted: the token one step ahead of the feature."""

    FEATURE_AND_SHIFTED_TOKEN = "feature-shifted"
    FEATURE_AND_UNSHIFTED_TOKEN = "feature-unshifted"
    FEATURE = "feature"
    TOKEN = "token"

    @property
    def has_feature(self) -> bool:
        """Whether the previous feature enters."""
        return self is not Inputs.TOKEN

    @property
    def has_token(self) -> bool:
        """Whether a token embedding enters."""
        return self is not Inputs.FEATURE

    @property
    def is_shifted(self) -> bool:
        """Whether a pair's token is one ahead of its feature."""
        return self is not Inputs.FEATURE_AND_UNSHIFTED_TOKEN


class TrainedWith(BaseModel):
    """What a head was trained with: with something else it drafts worse, and nobody would know why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Annotated[str, Field(description="the target's folder, hub id or name")]
    revision: Annotated[str | None, Field(description="commit of the target's repository, where it is known")] = None
    chat_template: Annotated[str | None, Field(description="hash of the chat template of its conversations")] = None


class LayerConfig(BaseModel):
    """Sizes of one LLaMA decoder layer."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hidden_size: Annotated[
        int, Field(ge=1, le=MAX_WIDTH, description="width of the head, its embeddings and its predicted features")
    ]
    intermediate_size: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="width of the SwiGLU layer")]
    num_attention_heads: Annotated[int, Field(ge=1, le=MAX_HEAD_DIM)]
    num_key_value_heads: Annotated[int, Field(ge=1, le=MAX_HEAD_DIM)]
    head_dim: Annotated[int, Field(ge=2, le=MAX_HEAD_DIM, description="width of one attention head")]
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    rope_scaling: Annotated[dict[str, Any] | None, Field(description="as in transformers: rope_type, factor, ...")] = None
    qkv_bias: Annotated[bool, Field(description="biases of q, k and v, as in Qwen2")] = False

    @model_validator(mode="after")
    def _is_a_layer(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} key-value heads")
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.head_dim}")
        return self


class VocabularyConfig(BaseModel):
    """What every head's config says of the tokens that it drafts, and of the target that it was made for."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    vocab_size: Annotated[int, Field(ge=1, le=MAX_VOCAB, description="of the target")]
    draft_vocab_size: Annotated[
        int | None, Field(ge=1, le=MAX_VOCAB, description="tokens that the head can draft; null: all")
    ] = None
    own_lm_head: Annotated[bool, Field(description="the LM head is the head's own, not rows of the target's")] = False
    max_positions: Annotated[int | None, Field(ge=1, description="positions that it was made for; null: not known")] = None
    trained_with: Annotated[TrainedWith | None, Field(description="null: not known")] = None

    @property
    def output_size(self) -> int:
        """Rows of the LM head that drafts are taken from."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size


class HeadConfig(LayerConfig, VocabularyConfig):
    """What an EAGLE head is. `layers` empty: EAGLE-1/2, on post-norm features; else EAGLE-3, on these layers' inputs."""

    fc_bias: Annotated[bool, Field(description="bias of the projection of the inputs")] = True
    inputs: Annotated[Inputs, Field(description="what the head sees")] = Inputs.FEATURE_AND_SHIFTED_TOKEN
    embedding_scale: Annotated[float, Field(gt=0, description="multiplies embeddings before fc")] = 1.0
    feature_scale: Annotated[float, Field(gt=0, description="multiplies features before fc")] = 1.0
    layers: Annotated[
        tuple[int, ...], Field(max_length=64, description="EAGLE-3: the target's layers whose inputs are fused")
    ] = ()
    target_hidden_size: Annotated[
        int | None, Field(ge=1, le=MAX_WIDTH, description="EAGLE-3: width of the target, if another")
    ] = None
    norm_before_residual: Annotated[bool, Field(description="EAGLE-3: the residual starts from the normed hidden state")] = (
        False
    )

    @property
    def kind(self) -> Literal["eagle", "eagle3"]:
        """The family."""
        return "eagle3" if self.layers else "eagle"

    @property
    def made_for(self) -> tuple[int, int]:
        """Hidden size and vocabulary of its target."""
        return (self.hidden_size if self.target_hidden_size is None else self.target_hidden_size), self.vocab_size

    @model_validator(mode="after")
    def _fits(self) -> "HeadConfig":
        if self.layers and self.inputs is not Inputs.FEATURE_AND_SHIFTED_TOKEN:
            raise ValueError("EAGLE-3 takes features and shifted tokens")
        return self
