"""What verifiers share: the checks before a tree is trusted, and the way down it."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

from specdec.errors import NumericsError, PluginError
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import SINGLE_DRAWS, DraftTree, Draw

TryChildren: TypeAlias = Callable[[int, tuple[int, ...]], tuple[int | None, TokenDist]]
"""(node, its children in draw order) -> the accepted child or None, and what is left of p at the node."""


def siblings(tree: DraftTree, node: int, accepts: frozenset[Draw], verifier: str) -> tuple[int, ...]:
    """The children of `node` to verify, in draw order, i.i.d. repeats kept; empty at a leaf. Scouts are left out.

    A single draw from q is of every kind in SINGLE_DRAWS. Raises PluginError for a kind of draw that is not accepted.
    """
    drawn = tuple(child for child in tree.draw_order.get(node, ()) if child not in tree.scouts)
    if not drawn:
        return ()
    kind = tree.draw_kind.get(node)
    alike = SINGLE_DRAWS if kind in SINGLE_DRAWS and len(drawn) == 1 else {kind}
    if not alike & accepts:
        wanted = " or ".join(sorted(accepts))
        raise PluginError(
            f"node {node}: its children are stamped as {kind or 'no'} draws; "
            f"verifier '{verifier}' is lossless for {wanted} draws only"
        )
    return drawn


def check_drafted(draft_prob: float, node: int, token: int) -> float:
    """The q of a drafted token. Raises NumericsError unless it is positive: the token was not drawn from the stated q."""
    if not draft_prob > 0:
        raise NumericsError(f"node {node}: token {token} was drafted although its own q gives it probability {draft_prob}")
    return draft_prob


def descend(tree: DraftTree, rng: TargetRng, accepts: frozenset[Draw], verifier: str, try_children: TryChildren) -> Verdict:
    """Go down while a child is accepted; where none is, what is left of p gives the next token."""
    path: list[int] = []
    node = 0
    while True:
        drawn = siblings(tree, node, accepts, verifier)
        accepted, left = try_children(node, drawn)
        if accepted is None:
            token = left.choose(rng, tree.root_position + tree.depths[node] + 1)
            return Verdict(tuple(path), token, all_accepted=not drawn)
        path.append(accepted)
        node = accepted


def check_single(drawn: tuple[int, ...], node: int, verifier: str) -> None:
    """Raise PluginError where a rule for chains meets several children."""
    if len(drawn) > 1:
        raise PluginError(f"node {node}: {len(drawn)} children were drawn; verifier '{verifier}' verifies one per node")


def accept_single(
    tree: DraftTree, node: int, drawn: tuple[int, ...], target_probs: TargetProbs, rng: TargetRng, *, lenience: float = 1.0
) -> tuple[int | None, TokenDist]:
    """Rejection sampling of at most one draw from q: the child or None, and what is left of p. *Source: arXiv 2211.17192.*

    lenience: what q is multiplied by; below 1 the rule is lossy.
    """
    dist = target_probs.row(node)
    if not drawn:
        return None, dist
    q, (child,) = tree.q_of(node), drawn
    if lenience != 1:
        q = q * lenience
    draft_prob = check_drafted(float(q[tree.tokens[child]]), child, tree.tokens[child])
    if rng.flip(min(1.0, dist.prob(tree.tokens[child]) / draft_prob)):
        return child, dist
    return None, dist.residual(q) or target_probs.fall_back(dist)


def block_length(
    rows: Sequence[TokenDist], q_rows: Sequence[Tensor], ratios: Sequence[float], rng: TargetRng
) -> tuple[int, float]:
    """How many tokens of a chain block verification accepts, and the weight of that beginning.

    Args:
        rows: p by node of the chain, the root first, the last node left out: as many as there are tokens.
        q_rows: [vocab] q by node, likewise.
        ratios: p/q by token.
        rng: Draws whether a beginning passes.

    *Source: arXiv 2403.10444, algorithm 2.*
    """
    weights = [1.0]
    for ratio in ratios:
        weights.append(min(1.0, weights[-1] * ratio))
    for length in range(len(ratios), 0, -1):
        weight = passing = weights[length]
        if length < len(ratios):
            excess = float(rows[length].excess(q_rows[length], weight).sum())
            passing = excess / (excess + (1 - weight)) if excess > 0 or weight < 1 else 1.0
        if rng.flip(passing):
            return length, weight
    return 0, 1.0
