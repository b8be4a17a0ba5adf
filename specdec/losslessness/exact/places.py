"""The places of a draft tree that a rule may treat differently: how deep a child is, and its rank among siblings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from specdec.trees.draft_tree import DraftTree

Place: TypeAlias = tuple[int, int]
"""(depth, sibling), both from 1: the child that was drawn as the `sibling`-th of its parent, `depth` levels below the root."""

NextProbs: TypeAlias = Callable[[tuple[int, ...]], Sequence[float]]
"""Drafted tokens below the root -> the target's probability of each next token."""


def drafted_places(tree: DraftTree) -> frozenset[Place]:
    """Where the tree has children, repeated draws included."""
    return frozenset(
        (tree.depths[parent] + 1, rank)
        for parent, drawn in tree.draw_order.items()
        for rank in range(1, _count(tree, drawn) + 1)
    )


def visible_places(tree: DraftTree, target_probs: NextProbs) -> frozenset[Place]:
    """The places of the tree at which a wrong rule could show.

    The target must be able to get to the parent and to go two ways from there, and more tokens must be possible than siblings
    were drawn: the last of as many draws as tokens is forced, and says nothing.
    """
    found: set[Place] = set()
    for parent, drawn in tree.draw_order.items():
        path = tuple(tree.path_tokens(parent))
        if not all(target_probs(path[:end])[token] > 0 for end, token in enumerate(path)):
            continue
        possible = [token for token, prob in enumerate(target_probs(path)) if prob > 0]
        most = min(_count(tree, drawn), _free_draws(tree, parent, possible)) if len(possible) > 1 else 0
        found |= {(tree.depths[parent] + 1, rank) for rank in range(1, most + 1)}
    return frozenset(found)


def _count(tree: DraftTree, drawn: Sequence[int]) -> int:
    return sum(child not in tree.scouts for child in drawn)


def _free_draws(tree: DraftTree, parent: int, possible: Sequence[int]) -> int:
    """How many children may be drawn before the last is forced."""
    if tree.q is not None and tree.q_row[parent] >= 0:
        return int((tree.q_of(parent) > 0).sum()) - 1
    drafted = {tree.tokens[child] for child in tree.children[parent]}
    return len(drafted.union(possible)) - 1


def declared_places(most_children: Sequence[int], max_nodes: int | None) -> frozenset[Place]:
    """The places that a builder declares. most_children: by depth of the parent; max_nodes: of a whole draft."""
    return frozenset(
        (depth, rank)
        for depth, most in enumerate(most_children, 1)
        for rank in range(1, most + 1)
        if max_nodes is None or depth - 1 + rank <= max_nodes
    )


def words(places: Iterable[Place]) -> str:
    """In words, levels with the same siblings together: 'depth 1: siblings 1-4; depths 2-4: siblings 1-3'."""
    by_depth: dict[int, list[int]] = {}
    for depth, rank in sorted(places):
        by_depth.setdefault(depth, []).append(rank)
    runs = [list(run) for _, run in groupby(sorted(by_depth), key=_run_key(by_depth))]
    return "; ".join(f"{_span('depth', run)}: {_span('sibling', by_depth[run[0]])}" for run in runs)


def _run_key(by_depth: Mapping[int, list[int]]) -> Callable[[int], tuple[tuple[int, ...], int]]:
    """Neighbouring depths with the same siblings have the same key."""
    order = {depth: number for number, depth in enumerate(sorted(by_depth))}
    return lambda depth: (tuple(by_depth[depth]), depth - order[depth])


def _span(noun: str, numbers: Sequence[int]) -> str:
    """'depth 3', 'siblings 1-4', 'siblings 2, 4'."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{noun}s {numbers[0]}-{numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers))}"
