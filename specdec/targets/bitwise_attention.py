"""Attention of bitwise mode: a call for each row, so that no row's bits depend on its place among the others.

One call for all rows shares them out among threads, each of which works in a buffer of its own: with two threads, torch's
`scaled_dot_product_attention` gives the second half of 16 equal rows other bits than the first. A row by itself is always
shared out in the same way, head by head.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

BATCHED = frozenset(
    [scaled_dot_product_attention, torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__]
)
"""What attention, eager attention and batches of experts are made of."""

ALIGNMENT = 64
"""Bytes; products of numbers that lie elsewhere in a cache line are added up in another order."""


class RowByRow(TorchFunctionMode):
    """While it is entered, batched products run on one row after another: the same numbers, and bits that no place changes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {} if kwargs is None else kwargs
        rows = _shared_rows((*args, *named.values())) if func in BATCHED else 1
        if rows == 1:
            return func(*args, **named)
        by_place = [_by_row(value, rows) for value in args]
        by_name = {name: _by_row(value, rows) for name, value in named.items()}
        return torch.cat(
            [
                func(*(values[row] for values in by_place), **{name: values[row] for name, values in by_name.items()})
                for row in range(rows)
            ]
        )


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 2


def _shared_rows(values: Iterable[Any]) -> int:
    """Rows that at least two batches among the values have; 1 where they have other numbers of them, or there are no two."""
    counts = [len(value) for value in values if _is_batch(value)]
    rows = max(counts, default=1)
    return rows if counts.count(rows) > 1 and set(counts) <= {1, rows} else 1


def _by_row(value: Any, rows: int) -> Sequence[Any]:
    """Each row as a batch of one; what is no batch of so many rows goes to each as it is."""
    if not _is_batch(value) or len(value) != rows:
        return [value] * rows
    parts: Sequence[Any] = value.split(1)
    if any(part.data_ptr() % ALIGNMENT for part in parts):
        return [part.clone(memory_format=torch.contiguous_format) for part in parts]
    return parts
