"""What `specdec train` reads: one YAML file says everything that a run depends on."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specdec.heads.architectures import TrainedKind
from specdec.heads.config import Inputs
from specdec.interfaces.consent import Consent
from specdec.training.row_losses import RowLoss


class Section(BaseModel):
    """A part of a training spec; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TargetSpec(Section):
    """The model that the head drafts for."""

    use: Annotated[Literal["builtin", "huggingface"], Field(description="the embedded model, or one of transformers")]
    model: Annotated[str | None, Field(min_length=1, description="huggingface: a folder with a config.json, or a hub id")] = (
        None
    )
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Field(description="in which it computes features")] = "bfloat16"
    attention: Annotated[Literal["sdpa", "eager"], Field(description="soft-capped models take eager only")] = "sdpa"
    device: Annotated[str, Field(description="of target and head: cpu, cuda, ...; auto: a GPU if there is one")] = "auto"
    revision: Annotated[str | None, Field(description="branch, tag or commit of a hub repository")] = None
    trust_remote_code: Consent = False

    @model_validator(mode="after")
    def _named(self) -> "TargetSpec":
        if (self.use == "huggingface") != (self.model is not None):
            raise ValueError("a huggingface target needs a model, and the builtin one takes none")
        return self


class SourceSpec(Section):
    """A file of conversations, one a line: `messages`, or `question` and `answer`."""

    path: Annotated[Path, Field(description="JSON lines")]
    max_tokens: Annotated[int, Field(ge=8, description="longer conversations are cut")] = 512
    repeat: Annotated[int, Field(ge=1, description="how often it occurs in an epoch")] = 1
    temperature: Annotated[float | None, Field(description="only lines with this `temperature`; null: all")] = None


class DataSpec(Section):
    """Which conversations, how they are split, and how their features are kept."""

    sources: Annotated[dict[str, SourceSpec], Field(min_length=1, description="by a name of their own")]
    chat_template_kwargs: Annotated[
        dict[str, Any], Field(description="variables of the chat template, as enable_thinking")
    ] = {}
    validate_on: Annotated[str, Field(description="the source whose held-out part is validated on: the target's own answers")]
    held_out_share: Annotated[float, Field(gt=0, lt=1, description="of the questions, by a hash of their words")] = 0.06
    held_out_at_most: Annotated[int, Field(ge=1, description="conversations of a source")] = 100
    tokens_per_shard: Annotated[int, Field(ge=1)] = 25000
    top_k: Annotated[int, Field(ge=1, description="logits kept as soft labels")] = 32
    keep_layers: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], Field(description="layers whose inputs are kept too, for EAGLE-3")
    ] = ()
    first_tokens: Annotated[int | None, Field(ge=1, description="features before the first step; null: all")] = None
    tokens_per_epoch: Annotated[int, Field(ge=0, description="features added before each later epoch")] = 0

    @model_validator(mode="after")
    def _validates_on_a_source(self) -> "DataSpec":
        if self.validate_on not in self.sources:
            raise ValueError(f"validate_on: no source is called '{self.validate_on}'; there are {', '.join(self.sources)}")
        return self


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
        Field(description="EAGLE-3: layers whose inputs are fused; unset: [2, L // 2, L - 3] of L layers, others below 7"),
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

    @model_validator(mode="after")
    def _of_its_kind(self) -> "HeadSpec":
        if self.kind != "eagle3" and self.layers:
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
BY_DEPTH = ("num_heads", "num_blocks")
KEYS_OF_OTHERS: dict[TrainedKind, tuple[str, ...]] = {
    "eagle": (*BY_DEPTH, "prefix"),
    "eagle3": (*BY_DEPTH, "prefix"),
    "medusa": ("inputs", "fc_bias", "prefix", *SIZES_OF_LAYERS),
    "hydra": ("inputs", "fc_bias"),
}
"""What each kind of head has not."""


class LossSpec(Section):
    """Weights of the two losses. As published for EAGLE-1: regression 1, cross_entropy 0.1; the others: 0 and 1."""

    regression: Annotated[float, Field(ge=0, description="of the smooth-L1 distance of features")] = 1.0
    cross_entropy: Annotated[float, Field(ge=0, description="of the loss of the rows of logits, `row_loss`")] = 0.1
    row_loss: Annotated[
        RowLoss,
        Field(description="of p (target) and q (head): kl(p, q), rkl = kl(q, p), tv = 1 - alpha, nla = -log alpha, lk_hybrid"),
    ] = "ce"
    step_decay: Annotated[float, Field(gt=0, le=1, description="step or head s weighs this to the power s")] = 0.8


ROWS_ONLY = LossSpec(regression=0.0, cross_entropy=1.0)
PUBLISHED_LOSSES: dict[TrainedKind, LossSpec] = {
    "eagle": LossSpec(),
    "eagle3": ROWS_ONLY,
    "medusa": ROWS_ONLY,
    "hydra": LossSpec(regression=0.0, cross_entropy=1.0, step_decay=1.0),
}


class NoiseSpec(Section):
    """Uniform noise on input features; as published for EAGLE-1: width 0.2, scaled by 512 / length."""

    width: Annotated[float, Field(ge=0, description="from -width/2 to width/2; 0: none")] = 0.0
    by_length: Annotated[bool, Field(description="times 512 / length of the conversation")] = True


class StepsSpec(Section):
    """How many drafting steps are unrolled, by progress of the run."""

    start: Annotated[int, Field(ge=1, le=8)] = 1
    end: Annotated[int, Field(ge=1, le=8)] = 1
    switch_at: Annotated[float, Field(ge=0, le=1, description="share of the budget after which `end` holds")] = 0.5


class OptimizerSpec(Section):
    """AdamW, or Muon for matrices with AdamW for the rest."""

    use: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    muon_learning_rate: Annotated[float, Field(gt=0, description="of matrices, under muon")] = 0.01
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], Field(description="of AdamW")
    ] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0, description="of matrices, the LM head left out")] = 0.01
    clip_norm: Annotated[float, Field(gt=0, description="largest norm of the whole gradient")] = 0.5
    warmup: Annotated[float, Field(ge=0, le=1, description="share of the budget")] = 0.02
    final_share: Annotated[float, Field(ge=0, le=1, description="of the peak, that the cosine ends at")] = 0.02


class BudgetSpec(Section):
    """When the run ends: exactly one of the two."""

    steps: Annotated[int | None, Field(ge=1, description="optimiser steps")] = None
    seconds: Annotated[float | None, Field(gt=0, description="time in training steps, over all restarts")] = None

    @model_validator(mode="after")
    def _one(self) -> "BudgetSpec":
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either steps or seconds")
        return self


class TrainingSpec(Section):
    """A whole training run."""

    name: Annotated[str, Field(min_length=1)]
    target: TargetSpec
    features: Annotated[Path, Field(description="folder of feature shards; may serve several runs")]
    output: Annotated[Path, Field(description="folder of checkpoints, log and head")]
    data: DataSpec
    head: HeadSpec = HeadSpec()
    start_from: Annotated[
        str | None, Field(description="a head to train further: a folder, a hub id or 'builtin'; its sizes are taken from it")
    ] = None
    losses: Annotated[LossSpec | None, Field(description="unset: as published for the kind of head")] = None
    noise: NoiseSpec = NoiseSpec()
    steps: StepsSpec = StepsSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    budget: BudgetSpec
    tokens_per_batch: Annotated[int, Field(ge=1, description="slots of a padded batch")] = 4096
    autocast: Annotated[bool, Field(description="bfloat16 matrix products")] = True
    validate_every: Annotated[int, Field(ge=1, description="steps")] = 200
    checkpoint_every: Annotated[int, Field(ge=1, description="steps")] = 100
    seed: Annotated[int, Field(ge=0, description="of weights, order and noise")] = 0
    data_seed: Annotated[int, Field(ge=0, description="of the order in which conversations become shards")] = 0

    @property
    def loss_weights(self) -> LossSpec:
        """The losses given, else the published ones."""
        return PUBLISHED_LOSSES[self.head.kind] if self.losses is None else self.losses

    @model_validator(mode="after")
    def _losses_of_the_kind(self) -> "TrainingSpec":
        if self.head.kind in ("eagle3", "medusa") and self.loss_weights.regression:
            name = {"eagle3": "EAGLE-3", "medusa": "Medusa"}[self.head.kind]
            raise ValueError(
                f"losses: {name} predicts no feature; {{regression: 0, cross_entropy: 1}} would work, or losses: null"
            )
        if self.head.kind in ("medusa", "hydra") and self.steps != StepsSpec():
            raise ValueError(f"steps: all heads of '{self.head.kind}' are learnt at once; leave steps out")
        if not self.loss_weights.regression and not self.loss_weights.cross_entropy:
            raise ValueError("losses: both weigh 0, so that nothing would be learnt; losses: null takes the published ones")
        return self
