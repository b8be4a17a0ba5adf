"""Trees of a given shape whose children are drawn from q: level by level, the same way however siblings are drawn."""

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.interfaces.proposals import Answer, Budget, DraftProbs, Frontier
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch
from specdec.trees.tree_shape import RankPath, TreeShape

DrawSiblings = Callable[[Tensor, int], list[int]]
"""(q [vocab], how many) -> tokens in draw order; fewer where q has no more."""


def grow_drawn(
    shape: TreeShape, sketch: TreeSketch, budget: Budget, kind: Draw, draw: DrawSiblings
) -> Generator[Frontier, Answer, DraftTree]:
    """Grow the sketch of a root and freeze it; the r-th draw takes the subtree of rank r.

    Why each choice keeps the distribution, that is why siblings given everything drawn before are still draws from their
    parent's q:

    - How many children a node gets depends on its place in the shape, on the budget, and on tokens above it, never on the
      children themselves. A shape too large is cut by position, before anything is drawn.
    - Without replacement, draws stop early only where q has no mass left: then every possible token is a child.
    - An i.i.d. repeat stays in `draw_order`, where the verifier tries it again; its node, and the subtree of the rank that came
      first, exist once. The subtree of the repeat's own rank is left out: its size follows from draws above it only.
    - Below a stop id nothing is drawn. The stop id itself is kept, and the decision looks at no token below.
    - No token is ranked, pruned or merged after it was drawn, and q is stored as it was drawn from, row by row.

    One frontier a level. q: [nodes with children in the shape, vocab], as received.
    """
    counts = shape.cut(nodes=budget.nodes, depth=budget.depth).child_counts()
    rows: list[Tensor] = []
    row_of: dict[int, int] = {}
    draws: dict[int, tuple[int, ...]] = {}
    frontier: dict[RankPath, int] = {(): 0} if counts else {}
    while frontier:
        answer = yield Frontier(sketch, tuple(frontier.values()))
        deeper: dict[RankPath, int] = {}
        for (path, node), q in zip(frontier.items(), stated_q(answer), strict=True):
            if not bool(q.any()):
                continue
            draws[node] = add_drawn(sketch, node, draw(q, counts[path]))
            row_of[node] = len(row_of)
            rows.append(q)
            for rank, child in _first_ranks(draws[node]):
                if (*path, rank) in counts and sketch.tokens[child] not in budget.stop_ids:
                    deeper[*path, rank] = child
        frontier = deeper
    return freeze_drawn(sketch, kind, draws, rows, row_of)


def sampling_kind(*, replacement: bool) -> Draw:
    """How siblings are drawn with rng.draw."""
    return Draw.IID if replacement else Draw.WITHOUT_REPLACEMENT


def stated_q(answer: Answer) -> Tensor:
    """[frontier, vocab] the q of an answer. Raises SpecdecError for one that has none."""
    if not isinstance(answer, DraftProbs):
        raise SpecdecError("a drawn tree draws from a warped q; it received logits or candidates")
    return answer.q


def add_drawn(sketch: TreeSketch, parent: int, tokens: list[int]) -> tuple[int, ...]:
    """The children in draw order, a node for each different token."""
    node_of: dict[int, int] = {}
    for token in tokens:
        if token not in node_of:
            node_of[token] = sketch.add(parent, token)
    return tuple(node_of[token] for token in tokens)


def freeze_drawn(
    sketch: TreeSketch, kind: Draw, draws: dict[int, tuple[int, ...]], rows: list[Tensor], row_of: dict[int, int]
) -> DraftTree:
    """The finished tree. rows: q as drawn from; row_of: by parent, its row."""
    return sketch.freeze(
        kind,
        draw_order=draws,
        q=torch.stack(rows) if rows else None,
        q_row=[row_of.get(node, -1) for node in range(len(sketch))],
    )


def _first_ranks(children: tuple[int, ...]) -> list[tuple[int, int]]:
    """(rank, child) where each child occurs first."""
    return [(rank, child) for rank, child in enumerate(children) if child not in children[:rank]]
