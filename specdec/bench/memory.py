"""The most memory that was in use at once."""

from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def watch_memory(device: torch.device) -> Callable[[], int | None]:
    """Start watching; what is returned tells the peak in bytes since then, models included; None where it cannot be measured.

    On a GPU: tensors on the device. Elsewhere, on Linux: resident memory of the process.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    try:
        _RESET.write_text("5")
    except OSError:
        return lambda: None
    return _peak_resident


def _peak_resident() -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return kilobytes[0] * 1024 if kilobytes else None
