"""Where a model's tensors live, and in which floating-point numbers: the options `device` and `dtype` of targets and heads."""

from collections.abc import Mapping
from typing import Final

import torch

from specdec.errors import TargetMismatch

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def resolve_device(device: str) -> torch.device:
    """'auto' is the GPU where there is one. Raises TargetMismatch for a device that torch does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise TargetMismatch(f"no device '{device}'; cpu, cuda and auto would work") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise TargetMismatch(f"torch sees no GPU for device '{device}'; device: cpu or auto would work")
    return wanted
