"""Whether drawn children follow the q that their builder states."""

from collections.abc import Collection, Mapping

from specdec.losslessness.exact.enumeration import Draft
from specdec.testing.report import CheckFailed
from specdec.trees.draft_tree import SINGLE_DRAWS, DraftTree, Draw, TreeError

ROUNDING = 1e-9
Place = tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...], Draw, bool]
"""Path of the parent, its stated q, the siblings drawn before, how they were drawn, whether none comes after."""


def check_draws(drafts: Mapping[Draft, float]) -> None:
    """Given the path and the siblings before it, each child must follow q as its kind of draw says.

    Raises CheckFailed naming the node, the token, what it is drawn with, and what q says.
    """
    distributions: dict[Place, dict[int, float]] = {}
    for draft, mass in drafts.items():
        for parent, children in draft.tree.draw_order.items():
            if draft.tree.draw_kind[parent] in SINGLE_DRAWS:
                _count(distributions, draft.tree, parent, children, mass)
    for place, distribution in distributions.items():
        _check_place(place, distribution)


def _count(
    distributions: dict[Place, dict[int, float]], tree: DraftTree, parent: int, children: tuple[int, ...], mass: float
) -> None:
    try:
        q = tuple(tree.q_of(parent).tolist())
    except TreeError as error:
        raise CheckFailed(f"{error}; store the row that was drawn from, and name it in q_row") from error
    tokens = tuple(tree.tokens[child] for child in children)
    for number, token in enumerate(tokens):
        place = (tuple(tree.path_tokens(parent)), q, tokens[:number], tree.draw_kind[parent], number == len(tokens) - 1)
        distribution = distributions.setdefault(place, {})
        distribution[token] = distribution.get(token, 0.0) + mass


def _check_place(place: Place, distribution: Mapping[int, float]) -> None:
    path, q, before, draw, _ = place
    reached = sum(distribution.values())
    wanted = _wanted(place, distribution)
    got = [distribution.get(token, 0.0) / reached for token in range(len(q))]
    worst = max(range(len(q)), key=lambda token: abs(got[token] - wanted[token]))
    if abs(got[worst] - wanted[worst]) <= ROUNDING:
        return
    where = f"the node of path {list(path)}" if path else "the root"
    after = f" after {list(before)}" if before else ""
    raise CheckFailed(
        f"the stated q is not what was drawn from: at {where}, child {len(before) + 1} ({draw} draw{after}) is token {worst} "
        f"with probability {got[worst]:.6g}; its q {[round(weight, 4) for weight in q]} says {wanted[worst]:.6g}. Draw it with "
        "rng.draw from the very row that is stored, and drop, sort or merge nothing afterwards"
    )


def _wanted(place: Place, distribution: Mapping[int, float]) -> list[float]:
    """The distribution of a child, by token: q, q without some tokens, or all on one token."""
    _, q, before, draw, last = place
    likeliest = max(range(len(q)), key=lambda token: (q[token], -token))
    struck: Collection[int] = ()
    if draw is Draw.WITHOUT_REPLACEMENT or (draw is Draw.TOP_THEN_ONE and last):
        struck = before
    elif draw is Draw.TOP_THEN_ONE:
        certain = max(distribution, key=lambda token: distribution[token])
        struck = [token for token in range(len(q)) if token != certain]
    elif draw is Draw.PAIR and before:
        struck = before if before[0] == likeliest else [token for token in range(len(q)) if token != likeliest]
    left = [0.0 if token in struck else weight for token, weight in enumerate(q)]
    total = sum(left)
    return [weight / total if total else 0.0 for weight in left]
