"""What the parts hand to each other, and what a run leaves behind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from specdec.contracts import Features, Guarantee
from specdec.errors import NumericsError, PluginError
from specdec.sampling.topk import best_tokens
from specdec.trees.draft_tree import DraftTree

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


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """Hidden states of some tokens. last: [tokens, hidden] after the final norm; layers: [tokens, layers, hidden]."""

    last: Tensor | None = None
    layers: Tensor | None = None

    def rows(self, index: list[int]) -> "HiddenStates":
        """The states of these rows, in this order."""
        return HiddenStates(
            None if self.last is None else self.last[index], None if self.layers is None else self.layers[index]
        )


def united(own: Features, parts: Iterable[Features]) -> Features:
    """Everything that several readers of hidden states want, each layer once, in the order in which it is first named."""
    every = [own, *parts]
    layers = dict.fromkeys(layer for features in every for layer in features.layers)
    return Features(last=any(features.last for features in every), layers=tuple(layers))


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The target's answer for one sequence.

    logits: [nodes, vocab] unwarped, for the tree's nodes from `first_node` on (those that no earlier call has scored).
    hidden: the hidden states asked for at prefill, for the same nodes.
    """

    logits: Tensor
    hidden: HiddenStates = field(default_factory=HiddenStates)
    first_node: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    path: accepted nodes from below the root down. next_token: drawn at the path's last node. all_accepted: that is a leaf.
    """

    path: tuple[int, ...]
    next_token: int
    all_accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """What one sequence emitted in a step, after stop and limit.

    nodes[i] is the node *at which* token i was drawn: the root first. hidden: [tokens, ...] the states of those nodes.
    tree: the draft that was verified, in whose numbering `nodes` and the rows of `Scored` are.
    """

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    hidden: HiddenStates = field(default_factory=HiddenStates)
    tree: DraftTree | None = None


PHASES = ("draft", "score", "verify", "commit")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One decode step of one sequence. Seconds are those of the whole batch; `batch_size` sequences shared them.

    drafted: nodes without the root. tested: levels at which a draft was tried. accepted: draft tokens that were emitted.
    committed: tokens emitted. emitted: those tokens. sources: by emitted token, the drafter it came from (-1: the target).
    fallbacks: residuals that came out empty by rounding.
    """

    drafted: int
    depth: int
    tested: int
    accepted: int
    committed: int
    emitted: tuple[int, ...]
    sources: tuple[int, ...]
    batch_size: int
    seconds: Mapping[str, float]
    fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw model log-probabilities at one emitted token, before any warping.

    top: the likeliest (token, log-probability), best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished answer.

    tokens exclude the prompt and include a final stop token; text excludes it, and is cut before a stop string.
    finish_reason: 'stop' or 'length'. stopped_by: the stop id, id sequence or string.
    records: one StepRecord per target forward after prefill.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: str
    stopped_by: int | str | tuple[int, ...] | None
    seed: int
    sample_index: int
    records: tuple[StepRecord, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    guarantee: Guarantee
    seconds: float
    prefill_seconds: float

    @property
    def tau(self) -> float:
        """Committed tokens per target forward after prefill; NaN without a step. The token of the prefill counts in neither."""
        if not self.records:
            return float("nan")
        return sum(r.committed for r in self.records) / len(self.records)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; NaN when nothing was drafted."""
        drafted = sum(r.drafted for r in self.records)
        return sum(r.accepted for r in self.records) / drafted if drafted else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens / seconds, prefill included."""
        return len(self.tokens) / self.seconds if self.seconds else float("nan")

    def alpha_at(self) -> list[float]:
        """By depth: accepted / tested positions (n-alpha of arXiv 2401.15077 along a chain)."""
        levels = max((r.depth for r in self.records), default=0)
        tested = [sum(r.tested > d for r in self.records) for d in range(levels)]
        accepted = [sum(r.accepted > d for r in self.records) for d in range(levels)]
        return [a / t for a, t in zip(accepted, tested, strict=True) if t]
