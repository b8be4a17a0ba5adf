"""Where a model's tensors live, in which floating-point numbers, and what becomes of memory that they leave."""

import ctypes
import sys
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
"""The option `dtype` of targets and heads."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
_HEAP_BYTES = 32 << 20


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


def keep_freed_memory() -> bool:
    """Let glibc keep up to 256 MB of freed memory, and serve blocks of up to 32 MB from it; False where there is no glibc.

    On a CPU, handing memory back costs more than much of a step's own work. By default every temporary of more than 128 kB may
    be mapped afresh, page fault by page fault. With 49,152 float64 weights a softmax and its normalisation took 1.05 ms so, and
    0.21 ms with this; a top-p cut 1.5 and 0.32 ms.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _HEAP_BYTES))
