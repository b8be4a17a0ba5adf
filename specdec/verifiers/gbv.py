"""Greedy block verification of several i.i.d. chains: the best of them, judged as a block."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.errors import PluginError
from specdec.interfaces.declarations import Reads, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import block_length, check_drafted, siblings

ACCEPTS = frozenset({Draw.IID})


class Gbv(Verifier[PartOptions]):
    """Of K i.i.d. chains the lexicographically best, verified by `block` against the distribution of the best of K.

    At each context tokens are ordered by p/q, of equal ones the lower id is the better; the same order selects the chain and
    sums its distribution, without which the rule is lossy. A chain that ends early, at a stop id, is compared as far as it
    goes. The selected chain follows, below a node that one chain reaches with probability x, and all worse chains with A, token
    t with [(A + y + z)^K - (A + y)^K] / [(A + x)^K - A^K], where z = x q(t) and y is x times q of the worse tokens.
    Nothing is read below a token of weight 0. Sorts the vocabulary at each level.
    More chains do not always accept more. *Source: arXiv 2602.16961.*
    """

    name: ClassVar[str] = "gbv"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(
            accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN, Shape.CHAINS}), reads_q=True, reads=Reads.TREE
        )

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Gbv":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        selected = self._select(tree, target_probs)
        rows = [target_probs.row(node) for node in selected.chain[:-1]]
        length, weight = block_length(rows, selected.q_rows, selected.ratios, rng)
        whole = length == len(selected.ratios)
        dist = target_probs.row(selected.chain[length])
        left = dist if whole else dist.residual(selected.q_rows[length], weight)
        token = (left or target_probs.fall_back(dist)).choose(rng, tree.root_position + length + 1)
        return Verdict(tuple(selected.chain[1 : length + 1]), token, all_accepted=whole)

    def _select(self, tree: DraftTree, target_probs: TargetProbs) -> "_Selected":
        chain, q_rows, ratios = [0], list[Tensor](), list[float]()
        count = passing = len(siblings(tree, 0, ACCEPTS, self.name))
        reached, worse, weight = 1.0, 0.0, 1.0
        while weight > 0 and (drawn := siblings(tree, chain[-1], ACCEPTS, self.name)):
            node = chain[-1]
            if len(drawn) != passing:
                raise PluginError(f"node {node}: {len(drawn)} draws where {passing} chains pass: these are no i.i.d. chains")
            q = tree.q_of(node).to(torch.float64)
            p = target_probs.row(node).dense(len(q)).to(q.device)
            level = _Level(p, q / q.sum(), reached, worse, count)
            best = max(drawn, key=lambda child: level.rank(tree.tokens[child]))
            token = tree.tokens[best]
            chosen = level.of_the_best()
            ratios.append(float(p[token]) / check_drafted(float(chosen[token]), best, token))
            weight = min(1.0, weight * ratios[-1])
            q_rows.append(chosen)
            reached, worse = level.below(token)
            passing = drawn.count(best)
            chain.append(best)
        return _Selected(chain, q_rows, ratios)


@dataclass(frozen=True, slots=True)
class _Selected:
    """The best chain, the root first; by node without the last, the distribution [vocab] of the best; by token, p over that."""

    chain: list[int]
    q_rows: list[Tensor]
    ratios: list[float]


class _Level:
    """The order of tokens at one context. reached, worse: probability of it and of all worse contexts, of one chain."""

    def __init__(self, p: Tensor, q: Tensor, reached: float, worse: float, count: int) -> None:
        self._q, self._reached, self._worse, self._count = q, reached, worse, count
        value = torch.where(q > 0, p / q, torch.inf)
        ids = torch.arange(len(q) - 1, -1, -1, device=q.device)
        order = ids[value[ids].argsort(stable=True)]
        self._order = order
        self._place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=q.device))
        ordered = q[order]
        self._before = torch.zeros_like(q).scatter_(0, order, ordered.cumsum(0) - ordered)

    def rank(self, token: int) -> int:
        """Higher is better."""
        return int(self._place[token])

    def of_the_best(self) -> Tensor:
        """[vocab] the distribution of the token of the best of all chains, given that it comes through this context."""
        low = self._worse + self._reached * self._before
        high = low + self._reached * self._q
        weights = self._q * _steps(low, high, self._count)
        return weights / weights.sum()

    def below(self, token: int) -> tuple[float, float]:
        """Probability of the context after `token`, and of all worse ones."""
        return self._reached * float(self._q[token]), self._worse + self._reached * float(self._before[token])


def _steps(low: Tensor, high: Tensor, count: int) -> Tensor:
    """(high^count - low^count) / (high - low), without the cancellation."""
    total = torch.zeros_like(low)
    for power in range(count):
        total = total + high**power * low ** (count - 1 - power)
    return total
