"""The shape of a strategy's own drafts: which nodes have children, and how many."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specdec.interfaces.declarations import BuilderDeclaration
from specdec.losslessness.exact.place_models import Siblings, open_rows
from specdec.losslessness.exact.places import Place, declared_places
from specdec.losslessness.exact.toy_models import StandIn
from specdec.trees.draft_tree import DraftTree
from specdec.trees.tree_shape import RankPath

MANY_TOKENS = 64
"""Vocabulary in which a tree that draws as it likes has all its children."""

LOOKS = 4


def roomy_model() -> StandIn:
    """Many tokens, each almost as likely as the next."""
    part = {"use": "tabular", "vocab": MANY_TOKENS}
    return StandIn("roomy", MANY_TOKENS, {**part, "random": open_rows(1)}, {**part, "random": open_rows(2)}, (3, 1, 4, 1, 5))


def own_siblings(drafts: Iterable[DraftTree], declares: BuilderDeclaration) -> list[Siblings]:
    """Every node of the shape that has children: for each depth the one with most comes first, then the others.

    drafts: on the roomy model. What is declared and not seen there is looked for below first children.
    """
    counts: dict[RankPath, int] = {}
    for draft in drafts:
        for parent, count in _counts(draft).items():
            counts[parent] = max(count, counts.get(parent, 0))
    seen = {(len(parent) + 1, rank) for parent, count in counts.items() for rank in range(1, count + 1)}
    unseen = wanted_places(declares) - seen
    for depth in sorted({depth for depth, _ in unseen}):
        first = (0,) * (depth - 1)
        counts[first] = max(counts.get(first, 0), *(rank for at, rank in unseen if at == depth))
    return _first_of_each_depth([Siblings(parent, count) for parent, count in sorted(counts.items())])


def wanted_places(declares: BuilderDeclaration) -> frozenset[Place]:
    """The places that a builder declares; none where it does not say how many children a node may have."""
    if declares.max_children is None:
        return frozenset()
    return declared_places(declares.max_children, declares.max_nodes)


def _counts(tree: DraftTree) -> dict[RankPath, int]:
    """Number of draws of each node that has any, by the ranks that lead to it."""
    ranks: dict[int, RankPath] = {0: ()}
    counts: dict[RankPath, int] = {}
    for node in range(len(tree)):
        drawn = [child for child in tree.draw_order.get(node, ()) if child not in tree.scouts]
        if drawn and node in ranks:
            counts[ranks[node]] = len(drawn)
            ranks |= {child: (*ranks[node], drawn.index(child)) for child in drawn}
    return counts


def _first_of_each_depth(siblings: Sequence[Siblings]) -> list[Siblings]:
    most: dict[int, Siblings] = {}
    for one in siblings:
        if one.depth not in most or one.count > most[one.depth].count:
            most[one.depth] = one
    leading = [most[depth] for depth in sorted(most)]
    return [*leading, *(one for one in siblings if one not in leading)]


def quickest(shape: Sequence[Siblings]) -> Siblings:
    """Siblings that are quickly enumerated, below a second child where there are any, so that two levels are looked at."""
    deep = [one for one in shape if one.depth == 2]
    second = [one for one in deep if one.parent == (1,)]
    chosen = (second or deep or list(shape))[0]
    return replace(chosen, count=min(chosen.count, 2))
