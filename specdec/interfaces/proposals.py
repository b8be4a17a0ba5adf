"""What a decoder hands to drafters and builders, and what drafters answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from specdec.errors import NumericsError, PluginError
from specdec.interfaces.results import HiddenStates, StepRecord
from specdec.sampling.topk import best_tokens
from specdec.trees.draft_tree import TreeSketch

Ranked: TypeAlias = tuple[list[list[int]], list[list[float]]]
"""By node, target ids, best first, and their log-probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """A drafter's answer: unwarped logits for each frontier node.

    logits: [frontier, draft_vocab]. target_ids: [draft_vocab] the target id of each column; None: column i is target id i
    (there may be fewer columns than the target has ids, never more). made_by: whose weights gave them, for messages.
    """

    logits: Tensor
    target_ids: Tensor | None = None
    source: int = 0
    made_by: str | None = None

    def unusable(self) -> NumericsError:
        """What to raise for NaN or infinite logits."""
        return NumericsError(
            "a row of draft logits has NaN or infinity" + (f": {self.made_by} gave it" if self.made_by else "")
        )

    def top(self, count: int) -> Ranked:
        """Per frontier node, the `count` likeliest target ids, best first, and their log-probabilities.

        Equal logits: the lower id first. Impossible tokens are left out. Raises NumericsError for NaN or infinite logits.
        """
        return self._apart(best_tokens(self.logits, count, self.target_ids))

    def _apart(self, best: list[list[tuple[int, float]]]) -> Ranked:
        if any(row and row[0][1] != row[0][1] for row in best):
            raise self.unusable()
        return [[t for t, _ in row] for row in best], [[s for _, s in row] for row in best]


@dataclass(frozen=True, slots=True)
class Candidates:
    """A drafter's answer without a distribution: per frontier node some tokens, best first, with scores that fall.

    Scores are log-probability-like (at most 0), so that they add up along a path. sources: by token, which of several drafters
    it is from; empty: all are from `source`.
    """

    tokens: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[float, ...], ...]
    source: int = 0
    sources: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if [len(row) for row in self.tokens] != [len(row) for row in self.scores]:
            raise PluginError(f"drafter {self.source}: candidates need a score for every token, node by node")
        if self.sources and [len(row) for row in self.tokens] != [len(row) for row in self.sources]:
            raise PluginError(f"drafter {self.source}: candidates with sources need one for every token, node by node")

    def top(self, count: int) -> Ranked:
        """Per frontier node, the first `count` different tokens that are possible, and their scores."""
        best = [_different(*row)[:count] for row in zip(self.tokens, self.scores, strict=True)]
        return [[t for t, _ in row] for row in best], [[s for _, s in row] for row in best]


def _different(tokens: tuple[int, ...], scores: tuple[float, ...]) -> list[tuple[int, float]]:
    first: dict[int, float] = {}
    for token, score in zip(tokens, scores, strict=True):
        if score > float("-inf"):
            first.setdefault(token, score)
    return list(first.items())


def top_of_each(answers: Sequence[Distributions | Candidates], count: int) -> list[Ranked]:
    """`answer.top(count)` of every answer; logits over the same columns are ranked at once, for little more than one costs."""
    shared = [a for a in answers if isinstance(a, Distributions)]
    alike = len({(id(a.target_ids), a.logits.shape[1], a.logits.dtype) for a in shared}) == 1
    if len(shared) < len(answers) or not alike:
        return [answer.top(count) for answer in answers]
    best = iter(best_tokens(torch.cat([a.logits for a in shared]), count, shared[0].target_ids))
    return [a._apart([next(best) for _ in a.logits]) for a in shared]


@dataclass(frozen=True, slots=True, eq=False)
class DraftProbs:
    """What a drawing builder gets instead of logits: q [frontier, vocab], warped, in target ids, exactly to be drawn from."""

    q: Tensor
    source: int = 0


Proposal: TypeAlias = Distributions | Candidates
Answer: TypeAlias = Distributions | Candidates | DraftProbs


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes of a growing tree for which the builder asks the drafter. Their ids hold until the next step."""

    tree: TreeSketch
    nodes: tuple[int, ...]


@dataclass(slots=True)
class Memory:
    """What a builder keeps from step to step; the decoder only carries it."""

    kept: object = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a draft may cost. nodes: drafted nodes, root excluded; depth: levels below the root (limit and context room).

    stop_ids: tokens after which the sequence ends, below which drafting is useless.
    rows: sequences that share the forward, this one included. queue: whether others wait to take the place of one that ends,
    so that one that gets ahead leaves no gap. last: the sequence's last step, None before its first.
    memory: the sequence's own. batch: of all that decode together.
    """

    nodes: int
    depth: int
    stop_ids: frozenset[int] = frozenset()
    rows: int = 1
    queue: bool = False
    last: StepRecord | None = None
    memory: Memory = field(default_factory=Memory)
    batch: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True, eq=False)
class DraftStart:
    """One sequence at the start of drafting: the prompt, the first token, and the prompt's hidden states [prompt, ...].

    `hidden` row i belongs to prompt token i, the node at which token i + 1 was drawn.
    """

    prompt: tuple[int, ...]
    first_token: int
    hidden: HiddenStates
