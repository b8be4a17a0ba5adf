"""What a target held likely after which tokens: the tables of token recycling, kept for one and for two tokens of context."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import numpy
import torch
from torch import Tensor

from specdec.errors import SpecError
from specdec.lookup.array_files import Array, read_arrays, write_arrays
from specdec.sampling.topk import top_columns

KIND = "successors"

ORDERS: Final = (1, 2)
"""Tokens of context."""

SAMPLED = 4096
"""Columns that are looked at, evenly spread, to estimate what the unlikely tokens sum up to."""

Successors: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest next tokens, best first, and their probabilities at the time."""

Table: TypeAlias = dict[tuple[int, ...], Successors]


def likeliest(logits: Tensor, count: int) -> list[Successors]:
    """By row of `logits` [rows, vocab], the `count` likeliest tokens with probabilities, impossible ones left out.

    The tokens are exact. So are the probabilities up to SAMPLED columns; beyond, the mass of all other tokens is estimated from
    a sample, since an exact softmax over a vocabulary costs as much as a layer of a small model.
    """
    count = min(count, logits.shape[-1])
    values, columns = top_columns(logits, count)
    best, stride = values.float(), max(1, logits.shape[-1] // SAMPLED)
    sample = logits[:, ::stride].float()
    others = torch.logsumexp(torch.where(sample < best[:, -1:], sample, float("-inf")), -1) + math.log(stride)
    norm = torch.logaddexp(torch.logsumexp(best, -1), others)
    probabilities = (best - norm[:, None]).exp()
    rows = zip(columns.tolist(), probabilities.tolist(), strict=True)
    return [tuple((t, p) for t, p in zip(*row, strict=True) if p > 0) for row in rows]


@dataclass(slots=True)
class SuccessorTables:
    """The most recent likeliest next tokens by the last token, and by the last two.

    start: tables that are looked at where this one has nothing; they are shared and never changed.
    """

    orders: int = 2
    start: "SuccessorTables | None" = None
    tables: Mapping[int, Table] = field(default_factory=lambda: {order: {} for order in ORDERS})

    def enter(self, context: Sequence[int], successors: Successors) -> None:
        """What is likely after a context of at least one token; it replaces what was held before."""
        for order in ORDERS[: self.orders]:
            if order <= len(context) and successors:
                self.tables[order][tuple(context[-order:])] = successors

    def find(self, context: Sequence[int]) -> tuple[int, Successors]:
        """The longest order that is known for this context, and what is held there; 0 and () for none."""
        for order in reversed(ORDERS[: self.orders]):
            key = tuple(context[-order:])
            found = self.tables[order].get(key)
            if found is None and self.start is not None:
                found = self.start.tables[order].get(key)
            if found is not None:
                return order, found
        return 0, ()


def write_successors(path: Path, tables: SuccessorTables, *, vocabulary: str | None) -> None:
    """Write the file that `read_successors` reads back; it appears only when it is whole. Raises SpecError for empty tables."""
    arrays: dict[str, Array] = {}
    for order in ORDERS:
        table = tables.tables[order]
        if not table:
            raise SpecError("the texts have fewer than two tokens: there is nothing to recycle")
        width = max(map(len, table.values()))
        padded = [[*row, *[(-1, 0.0)] * (width - len(row))] for row in table.values()]
        arrays[f"contexts{order}"] = numpy.array(list(table), dtype=numpy.int32)
        arrays[f"tokens{order}"] = numpy.array([[t for t, _ in row] for row in padded], dtype=numpy.int32)
        arrays[f"probabilities{order}"] = numpy.array([[p for _, p in row] for row in padded], dtype=numpy.float16)
    write_arrays(path, arrays, kind=KIND, vocabulary=vocabulary)


def read_successors(path: str | Path) -> tuple[SuccessorTables, str | None]:
    """The tables in a file, and the fingerprint of their vocabulary. Raises SpecError for a file that has none."""
    dtypes = {"contexts": "int32", "tokens": "int32", "probabilities": "float16"}
    wanted = {f"{name}{order}": dtype for order in ORDERS for name, dtype in dtypes.items()}
    arrays, vocabulary = read_arrays(Path(path), wanted, kind=KIND)
    tables: dict[int, Table] = {}
    for order in ORDERS:
        contexts, tokens, probabilities = (arrays[f"{n}{order}"] for n in ("contexts", "tokens", "probabilities"))
        shapes = contexts.ndim == tokens.ndim == 2 and contexts.shape == (len(tokens), order)
        if not shapes or tokens.shape != probabilities.shape:
            raise SpecError(f"{path}: the {KIND} are damaged: arrays of order {order} do not fit together; build them again")
        rows = zip(contexts.tolist(), tokens.tolist(), probabilities.tolist(), strict=True)
        tables[order] = {tuple(context): _row(some, p) for context, some, p in rows}
    return SuccessorTables(tables=tables), vocabulary


def _row(tokens: Iterable[int], probabilities: Iterable[float]) -> Successors:
    return tuple((t, min(p, 1.0)) for t, p in zip(tokens, probabilities, strict=True) if t >= 0 and p > 0)
