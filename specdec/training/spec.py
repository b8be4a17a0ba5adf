"""What `specdec train` reads: one YAML file says everything that a run depends on."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specdec.heads.architectures import TrainedKind
from specdec.interfaces.consent import Consent
from specdec.training.head_spec import HeadSpec, Section
from specdec.training.row_losses import RowLoss


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
    "block": LossSpec(regression=0.0, cross_entropy=1.0, step_decay=0.78),
}


WITHOUT_FEATURES = {"eagle3": "EAGLE-3", "medusa": "Medusa", "block": "a one-pass head"}
ANCHORS = 64


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
    anchors_per_conversation: Annotated[
        int, Field(ge=1, description="block: drafts learnt from of each conversation in a batch, drawn anew each time")
    ] = ANCHORS
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
        if self.loss_weights.regression and (name := WITHOUT_FEATURES.get(self.head.kind)) is not None:
            raise ValueError(
                f"losses: {name} predicts no feature; {{regression: 0, cross_entropy: 1}} would work, or losses: null"
            )
        if self.head.kind in ("medusa", "hydra", "block") and self.steps != StepsSpec():
            raise ValueError(f"steps: all depths of '{self.head.kind}' are learnt at once; leave steps out")
        if self.head.kind != "block" and self.anchors_per_conversation != ANCHORS:
            raise ValueError("anchors_per_conversation: only heads of kind 'block' learn from drawn anchors; leave it out")
        if not self.loss_weights.regression and not self.loss_weights.cross_entropy:
            raise ValueError("losses: both weigh 0, so that nothing would be learnt; losses: null takes the published ones")
        return self
