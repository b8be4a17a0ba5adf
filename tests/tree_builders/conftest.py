"""Drives a builder with answers that depend on the path, as a drafter's would."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from specdec.interfaces.parts import TreeBuilder
from specdec.interfaces.proposals import Budget, Candidates, Distributions, DraftProbs, Frontier
from specdec.sampling.rng import DraftRng, seeded
from specdec.trees.draft_tree import DraftTree
from specdec.trees.tree_rules import validate

Distribution = Callable[[tuple[int, ...]], Sequence[float]]


@dataclass
class Growth:
    """Drives one builder. distribution: drafted path -> next-token probabilities. asked: the paths of each frontier."""

    distribution: Distribution
    vocab_size: int
    asked: list[list[tuple[int, ...]]] = field(default_factory=list)

    def __call__(
        self,
        builder: TreeBuilder,
        *,
        nodes: int = 1000,
        depth: int = 1000,
        stop_ids: frozenset[int] = frozenset(),
        answer: str = "distributions",
        rng: DraftRng | None = None,
    ) -> DraftTree:
        steps = builder.grow(7 % self.vocab_size, 40, Budget(nodes, depth, stop_ids), rng or seeded(0).draft)
        reply = None
        try:
            while True:
                frontier = steps.send(reply)
                reply = self._answer(frontier, answer)
        except StopIteration as stop:
            validate(stop.value, vocab_size=self.vocab_size)
            return stop.value

    def _answer(self, frontier: Frontier, kind: str) -> Candidates | Distributions | DraftProbs:
        paths = [tuple(frontier.tree.path(node)) for node in frontier.nodes]
        self.asked.append(paths)
        rows = torch.tensor([list(self.distribution(path)) for path in paths], dtype=torch.float64)
        if kind == "probs":
            return DraftProbs(rows)
        logits = rows.log()
        if kind == "distributions":
            return Distributions(logits)
        order = [sorted(range(self.vocab_size), key=lambda t, row=row: (-float(row[t]), t)) for row in logits]
        scores = tuple(tuple(float(row[t]) for t in tokens) for row, tokens in zip(logits, order, strict=True))
        return Candidates(tuple(map(tuple, order)), scores)


def random_distribution(vocab_size: int, seed: int, *, zeros: float = 0.0, levels: int = 0) -> Distribution:
    """Pseudo-random rows by path. levels: probabilities are multiples of 1 / levels of each other, so that they tie."""
    rows: dict[tuple[int, ...], Tensor] = {}

    def distribution(path: tuple[int, ...]) -> Sequence[float]:
        if path not in rows:
            generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
            row = torch.rand(vocab_size, generator=generator, dtype=torch.float64)
            row = (row * levels).floor() if levels else row**3
            row[torch.rand(vocab_size, generator=generator) < zeros] = 0
            if not row.any():
                row[len(path) % vocab_size] = 1
            rows[path] = row / row.sum()
        return rows[path].tolist()

    return distribution


def table_distribution(table: Mapping[tuple[int, ...], Sequence[float]]) -> Distribution:
    return lambda path: table[path]


@pytest.fixture
def growth():
    return Growth


@pytest.fixture
def random_rows():
    return random_distribution


@pytest.fixture
def table_rows():
    return table_distribution
