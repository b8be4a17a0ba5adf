"""Rules that are wrong at one place or in one circumstance only are refuted by `check_verifier`."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.testing import CheckFailed, check_verifier
from specdec.testing.places import PLACES, Pair, prove_places
from specdec.testing.report import Checked
from specdec.trees.draft_tree import Draw
from specdec.verifiers.base import siblings
from specdec.verifiers.match import Match

Ranks = tuple[int, ...]
"""The ranks that lead to a child, its own last, from 1."""


class Rounds(Verifier[PartOptions]):
    """Recursive rejection sampling, by each parent's own kind of draw; a variant accepts too rarely where `spoilt` says so."""

    name = "rounds"
    Options = PartOptions
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.WITHOUT_REPLACEMENT})
    spoilt: ClassVar[Callable[..., bool]] = staticmethod(lambda tree, ranks, p, q, token: False)

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(cls.accepts, ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def kind(self, tree, node):
        return tree.draw_kind[node]

    def verify(self, tree, p, rng):
        path, ranks, node = [], (), 0
        while True:
            drawn = siblings(tree, node, self.accepts, self.name)
            left, q, taken = p.row(node), tree.q_of(node) if drawn else None, None
            for rank, child in enumerate(drawn, 1):
                token = tree.tokens[child]
                chance = min(1.0, left.prob(token) / float(q[token]))
                if self.spoilt(tree, (*ranks, rank), left, q, token):
                    chance *= 0.9
                if rng.flip(chance):
                    taken, ranks = child, (*ranks, rank)
                    break
                left = left.residual(q) or left
                if self.kind(tree, node) is Draw.WITHOUT_REPLACEMENT:
                    rest = q.clone()
                    rest[token] = 0.0
                    q = rest / rest.sum() if rest.any() else rest
            if taken is None:
                token = left.choose(rng, tree.root_position + tree.depths[node] + 1)
                return Verdict(tuple(path), token, all_accepted=not drawn)
            path.append(taken)
            node = taken


def variant(spoilt):
    return type("Variant", (Rounds,), {"name": "variant", "Options": PartOptions, "spoilt": staticmethod(spoilt)})


def prove_in_a_tree(cls):
    tree, report = PLACES[Draw.WITHOUT_REPLACEMENT][1], Checked("rule")
    report.covered["tree"] = prove_places(
        Pair((tree.cls, tree.options), (cls, PartOptions()), tree.words), report, everything=False
    )
    return report


@pytest.mark.slow
def test_the_rule_of_which_they_are_variants_passes_at_every_place():
    report = prove_in_a_tree(Rounds)
    assert report.largest_tv <= 1e-12
    assert "exact for every place of the tree (depths 1-2: siblings 1-4; depth 3: siblings 1-3;" in str(report)
    assert "not sibling" not in str(report)


AT = {
    "below the third child": (3, 1),
    "the fourth sibling of depth 2": (1, 4),
    "the second sibling below the second child": (2, 2),
    "the second sibling of depth 4": (1, 1, 1, 2),
    "the eighth level": (1,) * 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("place", AT.values(), ids=AT)
def test_a_rule_that_is_wrong_for_one_node_only_is_refuted(place):
    with pytest.raises(CheckFailed, match="the target's distribution"):
        prove_in_a_tree(variant(lambda tree, ranks, *_: ranks == place))


WHEN = {
    "the draft repeats the root's token": lambda tree, ranks, p, q, token: token == tree.tokens[0],
    "after 100 tokens exactly": lambda tree, *_: tree.root_position == 99,
    "a token id that few tables have": lambda tree, ranks, p, q, token: token == 100,
    "two branches share a token": lambda tree, *_: len(set(tree.tokens)) < len(tree) - 3,
    "more than ten nodes": lambda tree, *_: len(tree) > 10,
}


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
def test_a_rule_that_is_wrong_in_one_circumstance_only_is_refuted(when):
    with pytest.raises(CheckFailed, match="the distribution is the target's"):
        check_verifier(variant(when))


class KindOfTheRoot(Rounds):
    name = "kind_of_the_root"
    Options = PartOptions
    accepts = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})

    def kind(self, tree, node):
        return tree.draw_kind[0]


@pytest.mark.slow
def test_a_rule_that_takes_every_parent_for_the_root_s_kind_is_refuted():
    with pytest.raises(CheckFailed, match=r"where parents differ.*draws at the root and .* ones below"):
        check_verifier(KindOfTheRoot)


class ReadsAhead(Match):
    name = "reads_ahead"
    Options = PartOptions

    def verify(self, tree, p, rng):
        for node in range(len(tree)):
            p.row(node)
        return super().verify(tree, p, rng)


def test_a_rule_that_reads_rows_off_its_path_is_refuted():
    with pytest.raises(CheckFailed, match=r"reads_ahead.*along its path.*asked for the row of node \d.*Reads\.TREE"):
        check_verifier(ReadsAhead)
