"""A training run of a draft language model, as `head: {kind: model}` of a spec asks for it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from specdec.training.head_spec import Section
from specdec.training.row_losses import RowLoss
from specdec.training.spec import TargetSpec


class DraftModel(Section):
    """What is trained."""

    kind: Literal["model"]
    model: Annotated[str, Field(min_length=1, description="the draft model to begin with: a folder or a hub id")]


class DraftData(Section):
    """Conversations; their questions are answered by the draft model as well, as far as `own_samples` says."""

    path: Annotated[Path, Field(description="JSON lines: messages, or question and answer; best the target's own answers")]
    max_tokens: Annotated[int, Field(ge=8, description="longer conversations are cut")] = 512
    held_out_share: Annotated[float, Field(gt=0, lt=1, description="of the questions, by a hash of their words")] = 0.1


class DraftModelSpec(Section):
    """Distillation of a draft model from its target. *Source: arXiv 2310.08461 (DistillSpec).*"""

    name: Annotated[str, Field(min_length=1)]
    target: TargetSpec
    output: Annotated[Path, Field(description="folder of checkpoint, log and model")]
    data: DraftData
    head: DraftModel
    row_loss: RowLoss = "kl"
    own_samples: Annotated[
        float, Field(ge=0, le=1, description="share of conversations whose answer the draft model samples; 0: data only")
    ] = 0.5
    temperature: Annotated[float, Field(gt=0, description="of its samples")] = 1.0
    max_new_tokens: Annotated[int, Field(ge=1, description="of a sample")] = 64
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0, description="largest norm of the whole gradient")] = 1.0
    warmup: Annotated[float, Field(ge=0, le=1, description="share of the steps")] = 0.05
    final_share: Annotated[float, Field(ge=0, le=1, description="of the peak, that the cosine ends at")] = 0.1
    steps: Annotated[int, Field(ge=1)]
    conversations_per_step: Annotated[int, Field(ge=1)] = 8
    validate_every: Annotated[int, Field(ge=1, description="steps")] = 100
    checkpoint_every: Annotated[int, Field(ge=1, description="steps")] = 100
    seed: Annotated[int, Field(ge=0, description="of order and samples")] = 0
