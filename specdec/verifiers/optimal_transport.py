"""Optimal transport for n i.i.d. drafts of a node: the plan that accepts most, solved as a linear programme."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from specdec.errors import SpecError
from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist, left_of
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import accept_single, check_drafted, descend

ACCEPTS = frozenset({Draw.IID})

MOST_DRAFTS = 100_000
"""Tokens of q to the power of the number of drafts: a programme of this size takes about a second a node."""

Plan = Mapping[tuple[frozenset[int], int], float]
"""(set of drafted tokens, one of them) -> the probability that the set is drafted and this token accepted."""


class OptimalTransport(Verifier[PartOptions]):
    """Accept x of the drafted set S with w(S, x) / Pr(S), where the plan w accepts most; else draw from what is left of p.

    w is a plan if sum_x w(S, x) <= Pr(S) and sum_S w(S, x) <= p(x). It is found by linear programming; what its rounding breaks
    of these is scaled down, and what then is accepted of each token is taken from p exactly, so that the distribution does not
    hang on the solver. The plan goes through the sets of tokens that q may draw: q needs a truncation (`top_k` in
    `sampling.draft`), and more than MOST_DRAFTS drafts are refused.
    *Source: arXiv 2310.15141 (the transport), 2511.15898 (i.i.d. drafts); solver: HiGHS through scipy.*
    """

    name: ClassVar[str] = "optimal_transport"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=ALL_SHAPES, reads_q=True, most_drafts=MOST_DRAFTS)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "OptimalTransport":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        def try_children(node: int, drawn: tuple[int, ...]) -> tuple[int | None, TokenDist]:
            if len(drawn) < 2:
                return accept_single(tree, node, drawn, target_probs, rng)
            dist = target_probs.row(node)
            q = tree.q_of(node)
            for child in drawn:
                check_drafted(float(q[tree.tokens[child]]), child, tree.tokens[child])
            support = tuple(q.nonzero()[:, 0].tolist())
            offered = tuple((q[list(support)] / q.sum()).tolist())
            sets, plan = _planned(support, offered, tuple(map(dist.prob, support)), len(drawn))
            child_of = {tree.tokens[child]: child for child in drawn}
            drafted = frozenset(child_of)
            waiting = sets[drafted]
            for token, child in sorted(child_of.items()):
                share = plan.get((drafted, token), 0.0)
                if rng.flip(min(1.0, share / waiting) if waiting > 0 else 0.0):
                    return child, dist
                waiting -= share
            left = dist.dense(len(q))
            for (_, token), mass in plan.items():
                left[token] -= mass
            return None, left_of(left.clamp_min(0)) or target_probs.fall_back(dist)

        return descend(tree, rng, ACCEPTS, self.name, try_children)


@lru_cache(maxsize=64)
def _planned(
    tokens: tuple[int, ...], q: tuple[float, ...], p: tuple[float, ...], count: int
) -> tuple[Mapping[frozenset[int], float], Plan]:
    """The drafted sets and the plan; a function of the rows alone, kept since enumeration asks for the same ones again."""
    sets = drafted_sets(dict(zip(tokens, q, strict=True)), count)
    return sets, best_plan(dict(zip(tokens, p, strict=True)), sets)


def drafted_sets(q: Mapping[int, float], count: int) -> dict[frozenset[int], float]:
    """The sets that `count` i.i.d. draws may make, with their probability. q: by token, positive, sum 1.

    Raises:
        SpecError: For more than MOST_DRAFTS draws in all.
    """
    if len(q) ** count > MOST_DRAFTS:
        raise SpecError(
            f"verifier 'optimal_transport' goes through the drafts of a node: {count} draws of {len(q)} tokens are "
            f"{len(q) ** count:.3g}, at most {MOST_DRAFTS} are possible; sampling.draft.top_k makes q smaller"
        )
    within: dict[frozenset[int], float] = {}
    exactly: dict[frozenset[int], float] = {}
    for size in range(1, min(count, len(q)) + 1):
        for tokens in combinations(q, size):
            drafted = frozenset(tokens)
            within[drafted] = sum(q[token] for token in tokens) ** count
            smaller = (exactly[frozenset(part)] for less in range(1, size) for part in combinations(tokens, less))
            exactly[drafted] = max(0.0, within[drafted] - sum(smaller))
    return exactly


def best_plan(p: Mapping[int, float], sets: Mapping[frozenset[int], float]) -> Plan:
    """A plan that accepts as much as can be, up to the solver's rounding; never more of a token than p, or of a set than it.

    Args:
        p: By token that may be drafted.
        sets: Drafted set -> its probability.
    """
    tokens = {token: number for number, token in enumerate(p)}
    edges = [(drafted, token) for drafted, mass in sets.items() if mass > 0 for token in sorted(drafted) if p[token] > 0]
    if not edges:
        return {}
    rows = {drafted: number for number, drafted in enumerate(dict.fromkeys(drafted for drafted, _ in edges))}
    columns = np.arange(len(edges))
    from_sets = [rows[drafted] for drafted, _ in edges]
    to_tokens = [len(rows) + tokens[token] for _, token in edges]
    limits = np.array([sets[drafted] for drafted in rows] + list(p.values()))
    ones = np.ones(2 * len(edges))
    matrix = sparse.csr_array((ones, (from_sets + to_tokens, np.tile(columns, 2))), shape=(len(limits), len(edges)))
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(-np.ones(len(edges)), A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs", options=tight)
    masses = np.clip(found.x, 0, None) if found.x is not None else np.zeros(len(edges))
    for ends in (from_sets, to_tokens):
        used = np.bincount(ends, weights=masses, minlength=len(limits))
        masses = masses * np.minimum(1.0, limits / np.maximum(used, limits.clip(min=1e-300)))[ends]
    return {edge: float(mass) for edge, mass in zip(edges, masses, strict=True) if mass > 0}
