"""Who attends to whom: additive attention masks and positions for draft trees and for chunks of prompts.

Prefix token i lies in slot i; node n of a row in slot length + n. A window counts positions (prefix + depth), not slots.
Masks of trees are laid out on the host as bytes, and go to the device in one transfer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowNodes:
    """The nodes of one row that are to be scored.

    length: cached tokens. parents, depths: by node of the whole tree. first: nodes before it have been scored already.
    """

    length: int
    parents: Sequence[int]
    depths: Sequence[int]
    first: int = 0

    @property
    def count(self) -> int:
        """Nodes to be scored."""
        return len(self.parents) - self.first


def tree_mask(rows: Sequence[RowNodes], *, nodes: int, slots: int, window: int | None = None) -> Tensor:
    """[rows, 1, nodes, slots] bool: true where a node may attend. Nodes that pad a row attend only to themselves."""
    buffer = bytearray()
    for row in rows:
        lines = _ancestor_lines(row.parents) if window is None else _window_lines(row, window)
        behind = bytes(slots - row.length - len(row.parents))
        before = b"\1" * row.length
        for node in range(row.first, len(lines)):
            if window is not None:
                hidden = min(max(row.length + row.depths[node] - window + 1, 0), row.length)
                before = bytes(hidden) + b"\1" * (row.length - hidden)
            buffer += before
            buffer += lines[node]
            buffer += behind
        for slot in range(row.length + len(row.parents), row.length + row.first + nodes):
            line = bytearray(slots)
            line[slot] = 1
            buffer += line
    return torch.frombuffer(buffer, dtype=torch.bool).view(len(rows), 1, nodes, slots)


def chain_mask(starts: Sequence[int], counts: Sequence[int], *, nodes: int, slots: int, window: int | None = None) -> Tensor:
    """[rows, 1, nodes, slots] bool for counts[r] consecutive tokens of row r from position starts[r]; padding sees itself."""
    first = torch.tensor(list(starts))[:, None]
    position = first + torch.arange(nodes)
    slot = torch.arange(slots)
    seen = slot <= position[:, :, None]
    if window is not None:
        seen &= slot > position[:, :, None] - window
    padding = (torch.arange(nodes) >= torch.tensor(list(counts))[:, None])[:, :, None]
    return torch.where(padding, slot == position[:, :, None], seen)[:, None]


def additive(mask: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The bool mask as a bias on attention scores: 0 where it is true, else the least finite value of `dtype`."""
    seen = torch.zeros((), dtype=dtype, device=device)
    hidden = torch.full_like(seen, torch.finfo(dtype).min)
    return torch.where(mask.to(device), seen, hidden)


def tree_positions(rows: Sequence[RowNodes], nodes: int) -> list[list[int]]:
    """[rows][nodes] absolute positions: length + depth; nodes that pad a row stand at its root's position."""
    positions = []
    for row in rows:
        own = [row.length + depth for depth in row.depths[row.first :]]
        positions.append(own + [row.length] * (nodes - len(own)))
    return positions


def _ancestor_lines(parents: Sequence[int]) -> list[bytearray]:
    size = len(parents)
    lines: list[bytearray] = []
    for node, parent in enumerate(parents):
        line = bytearray(lines[parent]) if parent >= 0 else bytearray(size)
        line[node] = 1
        lines.append(line)
    return lines


def _window_lines(row: RowNodes, window: int) -> list[bytearray]:
    """Ancestors that are less than `window` levels above."""
    if max(row.depths, default=0) < window:
        return _ancestor_lines(row.parents)
    lines = []
    for start in range(len(row.parents)):
        line, node = bytearray(len(row.parents)), start
        for _ in range(window):
            if node < 0:
                break
            line[node] = 1
            node = row.parents[node]
        lines.append(line)
    return lines
