"""Traversal verification: a drafted tree from its leaves up, so that a path is judged as a whole before others are given up."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specdec.interfaces.declarations import ALL_SHAPES, Reads, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, siblings

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class Traversal(Verifier[PartOptions]):
    """The first path, in draw order and the deepest first, that passes with its weight.

    A child has the weight min(1, w p(x) / q(x)) of its parent's w, p and q. When it was given up, with all below it,
    S = sum (w p - q)+ and its parent goes on with p = norm((w p - q)+), w = S / (S + 1 - w) and, where children were drawn
    without replacement, q without x. A node whose children were all given up passes with its w, and its p gives the next token;
    the root always does. An i.i.d. repeat is tried again as a child without children. On a chain this is block verification.

    Rows of p are read at nodes that have children, from the root down; a node of weight 0 is given up with all below it.
    *Source: arXiv 2505.12398; i.i.d. draws likewise.*
    """

    name: ClassVar[str] = "traversal"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True, reads=Reads.TREE)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Traversal":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        visits = [self._visit(tree, 0, 1.0, target_probs)]
        while True:
            visit = visits[-1]
            if visit.waiting:
                child, weight, is_repeat = visit.next_child(tree)
                if weight > 0:
                    visits.append(self._visit(tree, child, weight, target_probs, is_leaf=is_repeat))
                else:
                    visit.give_up(tree.tokens[child], target_probs)
            elif len(visits) == 1 or rng.flip(visit.weight):
                path = tuple(one.node for one in visits[1:])
                token = visit.left(target_probs).choose(rng, tree.root_position + len(path) + 1)
                return Verdict(path, token, all_accepted=not siblings(tree, visit.node, ACCEPTS, self.name))
            else:
                visits.pop()
                visits[-1].give_up(tree.tokens[visit.node], target_probs)

    def _visit(
        self, tree: DraftTree, node: int, weight: float, target_probs: TargetProbs, *, is_leaf: bool = False
    ) -> "_Visit":
        drawn = () if is_leaf else siblings(tree, node, ACCEPTS, self.name)
        visit = _Visit(node, weight, list(drawn[::-1]))
        if drawn:
            dist = target_probs.row(node)
            q = tree.q_of(node).to(torch.float64)
            visit.rows = _Rows(dist, dist.probs, dist.of(q), float(q.sum()))
            visit.strikes = tree.draw_kind[node] is Draw.WITHOUT_REPLACEMENT
            visit.q = q
        return visit


@dataclass(slots=True)
class _Rows:
    """What is left of p, and q, on the support of p. p: [k] sums to 1; q: [k]; q_mass: of q everywhere."""

    dist: TokenDist
    p: Tensor
    q: Tensor
    q_mass: float


@dataclass(slots=True)
class _Visit:
    """A node on the way down. waiting: its children, the next one last. rows: None of a leaf."""

    node: int
    weight: float
    waiting: list[int]
    rows: _Rows | None = None
    q: Tensor | None = None
    strikes: bool = False
    tried: tuple[int, ...] = ()

    def next_child(self, tree: DraftTree) -> tuple[int, float, bool]:
        """The child that is tried next, its weight, and whether it was tried before."""
        child = self.waiting.pop()
        token = tree.tokens[child]
        repeats = child in self.tried
        self.tried = (*self.tried, child)
        if self.rows is None or self.q is None or not self.weight:
            return child, 0.0, repeats
        draft_prob = check_drafted(float(self.q[token]), child, token) / self.rows.q_mass
        slot = self._slot(token)
        target_prob = 0.0 if slot is None else float(self.rows.p[slot])
        return child, min(1.0, self.weight * target_prob / draft_prob), repeats

    def give_up(self, token: int, target_probs: TargetProbs) -> None:
        """Go on without a child."""
        rows, q = self.rows, self.q
        if rows is None or q is None or not self.weight:
            return
        left = (self.weight * rows.p - rows.q / rows.q_mass).clamp_min_(0)
        mass = float(left.sum())
        if mass > 0:
            rows.p = left.div_(mass)
            self.weight = mass / (mass + (1 - self.weight))
        elif self.weight < 1:
            self.weight = 0.0
        else:
            target_probs.fall_back(rows.dist)
        if self.strikes:
            rows.q_mass = self._strike(token, q)

    def left(self, target_probs: TargetProbs) -> TokenDist:
        """What the next token is drawn from."""
        if self.rows is None:
            return target_probs.row(self.node)
        return self.rows.dist.reweighted(self.rows.p) or target_probs.fall_back(self.rows.dist)

    def _strike(self, token: int, q: Tensor) -> float:
        """Take a token out of q. What q has left."""
        index = torch.tensor(token, device=q.device)
        self.q = q.index_fill(0, index, 0.0)
        slot = self._slot(token)
        if self.rows is not None and slot is not None:
            self.rows.q = self.rows.q.index_fill(0, torch.tensor(slot, device=self.rows.q.device), 0.0)
        return float(self.q.sum().clamp_min(torch.finfo(q.dtype).tiny))

    def _slot(self, token: int) -> int | None:
        """Where a token stands in the support of p."""
        if self.rows is None:
            return None
        ids = self.rows.dist.ids
        slot = int(torch.searchsorted(ids, token))
        return slot if slot < len(ids) and int(ids[slot]) == token else None
