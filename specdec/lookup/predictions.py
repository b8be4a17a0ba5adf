"""Drafting from counts: what was predicted at the nodes of a step's tree, and what that turned out to be worth."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from specdec.interfaces.proposals import Candidates, Frontier
from specdec.performance.online_calibration import Calibration
from specdec.trees.draft_tree import TreeSketch, follow

PATIENCE = 5.0
"""Expected hits after which a request's own success weighs as much as the general estimate."""

Guess: TypeAlias = tuple[int, float]
"""A token and its estimated probability."""

Guesser: TypeAlias = Callable[[TreeSketch, int], list[Guess]]
"""(tree, node) to the tokens that may follow there, best first."""


class Predictions:
    """One sequence's predictions since its last commit, corrected by their success within the request.

    least: a token is offered if its path, by the corrected estimates, is at least as likely as this.
    """

    def __init__(self, *, least: float) -> None:
        self._least = least
        self._calibration = Calibration(patience=PATIENCE)
        self._tree: TreeSketch | None = None
        self._at: dict[int, list[Guess]] = {}
        self._paths: dict[int, float] = {0: 1.0}

    def answer(self, frontier: Frontier, guess: Guesser) -> Candidates:
        """Candidates at every node of the frontier."""
        self._tree = frontier.tree
        rows = [self._row(frontier.tree, node, guess) for node in frontier.nodes]
        return Candidates(
            tuple(tuple(token for token, _ in row) for row in rows),
            tuple(tuple(math.log(probability) for _, probability in row) for row in rows),
        )

    def _row(self, tree: TreeSketch, node: int, guess: Guesser) -> list[Guess]:
        if node not in self._at:
            self._at[node] = guess(tree, node)
        path = self._path(tree, node)
        corrected = [(token, self._calibration(estimate)) for token, estimate in self._at[node]]
        offered = [(token, p) for token, p in corrected if p > 0 and path * p >= self._least]
        return sorted(offered, key=lambda one: -one[1])

    def _path(self, tree: TreeSketch, node: int) -> float:
        """Estimated probability of the path to `node`; tokens that another drafter put there count as certain."""
        if node not in self._paths:
            parent, token = tree.parents[node], tree.tokens[node]
            estimate = next((p for guessed, p in self._at.get(parent, ()) if guessed == token), None)
            step = 1.0 if estimate is None else self._calibration(estimate)
            self._paths[node] = self._path(tree, parent) * step
        return self._paths[node]

    def observe(self, tokens: Sequence[int]) -> None:
        """Hold what was predicted along the way against the tokens that were emitted, and forget the tree."""
        for node, token in () if self._tree is None else follow(self._tree, tokens):
            for guessed, estimate in self._at.get(node, ()):
                self._calibration.learn(estimate, guessed == token)
        self._tree = None
        self._at, self._paths = {}, {0: 1.0}
