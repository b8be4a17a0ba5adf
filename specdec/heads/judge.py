"""A judge: a linear map of the target's last hidden state that says whether a drafted token may stay.

A folder with config.json (`kind: judge`, sizes, what it was trained with) and model.safetensors (`weight` [hidden], `bias` []).
*Source: arXiv 2501.19309.*
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec.errors import CheckpointError
from specdec.files.atomic import whole_file, write_whole
from specdec.files.json_object import read_json_object
from specdec.heads.config import MAX_VOCAB, MAX_WIDTH, TrainedWith

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class JudgeConfig(BaseModel):
    """config.json of a judge."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["judge"] = "judge"
    hidden_size: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="of the target")]
    vocab_size: Annotated[int, Field(ge=1, le=MAX_VOCAB, description="of the target")]
    trained_with: TrainedWith | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """weight: [hidden] float32. bias: [] float32."""

    config: JudgeConfig
    weight: Tensor
    bias: Tensor

    def score(self, feature: Tensor) -> float:
        """The probability that a token may stay, by the target's hidden state [hidden] after its final norm at that token."""
        return float(torch.sigmoid(self.weight @ feature.float().to(self.weight.device) + self.bias))


def read_judge_config(folder: Path) -> JudgeConfig:
    """Raises CheckpointError where there is none, or another head's."""
    try:
        return JudgeConfig.model_validate(read_json_object(folder / CONFIG))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} has no {CONFIG}; expected the folder of a judge, as `specdec train` writes it"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{folder / CONFIG}: no judge: {place}: {first['msg']}") from error


def read_judge(folder: Path) -> Judge:
    """Raises CheckpointError for files that hold no judge."""
    config, path = read_judge_config(folder), folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {"weight": (config.hidden_size,), "bias": ()}:
        raise CheckpointError(f"{path}: has {shapes}; expected weight [{config.hidden_size}] and bias []")
    return Judge(config, tensors["weight"].float(), tensors["bias"].float())


def write_judge(folder: Path, judge: Judge) -> None:
    """Config and weights, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / WEIGHTS) as scratch:
        save_file({"weight": judge.weight.contiguous(), "bias": judge.bias}, scratch)
    write_whole(folder / CONFIG, judge.config.model_dump_json(indent=2) + "\n")
