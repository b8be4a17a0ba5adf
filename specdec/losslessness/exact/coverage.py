"""What an exact proof has covered, and what of a strategy's own trees it has not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from specdec.losslessness.exact.places import Place, words
from specdec.trees.tree_shape import RankPath

SHOWN = 4
"""Siblings below a node that are named."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """wanted: the places of the strategy's trees; tested: those that were enumerated with every draw free.

    lengths: of the prefixes, root included. token_ids: all below it were drafted. possible: tokens of a row, at most.
    steps: as many, one after another. rows: of the largest batch. nodes: of the largest draft that was enumerated; own_nodes:
    of the strategy's, where there is room. left: (path of ranks to a node, sibling) that were not enumerated below that node,
    though their place was elsewhere.
    """

    wanted: frozenset[Place] = frozenset()
    tested: frozenset[Place] = frozenset()
    lengths: frozenset[int] = frozenset()
    token_ids: int = 0
    possible: int = 0
    steps: int = 1
    rows: int = 1
    nodes: int = 0
    own_nodes: int = 0
    left: tuple[tuple[RankPath, int], ...] = ()

    @property
    def missing(self) -> frozenset[Place]:
        """Places that were not reached."""
        return self.wanted - self.tested

    @property
    def places_words(self) -> str:
        """Which places, in words."""
        if not self.wanted:
            return "exact: nothing is drafted"
        if not self.missing:
            return f"exact for every place of the tree ({words(self.wanted)})"
        reached = self.wanted & self.tested
        return f"exact to {words(reached) if reached else 'the root alone'}; not reached: {words(self.missing)}"

    @property
    def scope_words(self) -> str:
        """Beside the places: prefixes, tokens, steps and batches."""
        rows = f", batches of {self.rows}" if self.rows > 1 else ", one sequence at a time"
        steps = f"steps 1-{self.steps}" if self.steps > 1 else "one step"
        nodes = f", at most {self.nodes} of {self.own_nodes} nodes at once" if self.nodes < self.own_nodes else ""
        lengths = f"prefixes of {_ranges(self.lengths)} tokens"
        possible = f", {self.possible} possible tokens at once" if self.possible else ""
        left = f", not {_left_words(self.left)}" if self.left else ""
        return f"{lengths}, token ids below {self.token_ids}{possible}, {steps}{rows}{nodes}{left}"


def _left_words(left: Sequence[tuple[RankPath, int]]) -> str:
    """'sibling 2 below node 2, sibling 3 below node 1-2', ranks from 1; the first few of them."""
    shown = [f"sibling {rank} below node {'-'.join(str(step + 1) for step in path)}" for path, rank in left[:SHOWN]]
    more = [f"{len(left) - SHOWN} more"] if len(left) > SHOWN else []
    return ", ".join([*shown, *more])


def _ranges(numbers: Iterable[int]) -> str:
    """'2-130', or '2-5, 9, 34'."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "no"
