"""The mask argument of one forward, in the form that a model takes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdec.nn.tree_mask import additive
from specdec.targets.capability import MaskPlan


def mask_argument(
    plan: MaskPlan, span: int, dtype: torch.dtype, device: torch.device, draw: Callable[[int | None], Tensor]
) -> Any:
    """One additive mask, or a dict of them by layer type.

    span: the highest position plus one; windows that reach further hide nothing. draw: window -> bool mask.
    """
    drawn: dict[int | None, Tensor] = {}
    masks = {}
    for kind, window in plan.windows.items():
        effective = None if window is None or window >= span else window
        if effective not in drawn:
            drawn[effective] = additive(draw(effective), dtype, device)
        masks[kind] = drawn[effective]
    return masks if plan.by_layer_type else next(iter(masks.values()))
