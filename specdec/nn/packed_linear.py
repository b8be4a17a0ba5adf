"""Linear maps whose weights lie in the layout that the processor's kernels read, so that no call lays them out anew.

On a CPU, a product of a few rows with a plain matrix spends half of its time on that. Elsewhere the map is a plain one.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 16
"""For how many rows the layout is chosen; it serves any number."""

PACKED_DTYPES = (torch.bfloat16, torch.float32)

_PRODUCT: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""The product of packed maps, looked up once: finding it costs a small map a tenth of its time. None where torch has none."""


def _multiplied(states: Tensor, packed: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    mapped: Tensor = _PRODUCT(states, packed, bias, "none", [], "")
    return mapped


def _shaped(states: Tensor, packed: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    return states.new_empty(*states.shape[:-1], rows)


_OURS: Any = torch.library.Library("specdec", "FRAGMENT")  # type: ignore[no-untyped-call]
"""The packed product as torch.compile takes it: whole, where its own lowering wants constant weights."""
_OURS.define("packed_linear(Tensor states, Tensor packed, Tensor? bias, int rows) -> Tensor")
_OURS.impl("packed_linear", _multiplied, "CompositeExplicitAutograd")
_OURS.impl("packed_linear", _shaped, "Meta")


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """weight: [out, in], plain. packed: the same numbers in the kernels' layout, or None where there is none."""

    weight: Tensor
    bias: Tensor | None
    packed: Tensor | None

    def __call__(self, states: Tensor) -> Tensor:
        """[..., out] for states [..., in]. No gradient flows through a packed map."""
        if self.packed is None:
            return functional.linear(states, self.weight, self.bias)
        if torch.compiler.is_compiling():
            whole: Tensor = torch.ops.specdec.packed_linear(states, self.packed, self.bias, self.weight.shape[0])
            return whole
        mapped: Tensor = _PRODUCT(states, self.packed, self.bias, "none", [], "")
        return mapped


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The map, packed where the processor and the dtype have a layout of their own. The plain weight is kept beside it."""
    return Linear(weight, bias, packed(weight) if can_pack(weight) else None)


@torch.no_grad()
def joined(*modules: nn.Linear) -> Linear:
    """One map for all; the modules' own weights become views of it."""
    if len(modules) == 1:
        return linear(modules[0].weight, modules[0].bias)
    weight = torch.cat([module.weight for module in modules])
    bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
    start = 0
    for module in modules:
        rows = slice(start, start + module.out_features)
        module.weight = nn.Parameter(weight[rows], requires_grad=False)
        if bias is not None:
            module.bias = nn.Parameter(bias[rows], requires_grad=False)
        start += module.out_features
    return linear(weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether this build of torch has packed products for such a matrix."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKED_DTYPES
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and _PRODUCT is not None
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def packed(weight: Tensor) -> Tensor:
    """A copy in the kernels' layout."""
    with torch.inference_mode():
        laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)
    return laid_out
