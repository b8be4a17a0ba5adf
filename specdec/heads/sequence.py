"""One sequence's bookkeeping: which pairs are to be fed to the head, and what it said at which node."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.nn.tree_mask import RowNodes
from specdec.trees.draft_tree import TreeSketch


def same_prompt(first: DraftStart, second: DraftStart) -> bool:
    """Whether two sequences are samples of one prompt, so that one prefill serves both."""
    return first.hidden is second.hidden and first.prompt == second.prompt


class SequenceDraft:
    """The pairs of one sequence that the head's cache lacks, and the nodes that it has answered since the last commit.

    A pair is a feature and a token: of the feature's own position, or one ahead (`shifted`). The last pending pair predicts the
    children of the root. Place 0 is the root, place p > 0 the p-th drafted node that was fed; it lies in slot length + p - 1.
    """

    def __init__(self, root: int, *, shifted: bool) -> None:
        self._shifted = shifted
        self._root = root
        self.tokens: list[int] = []
        self.features: list[Tensor] = []
        self._forget()

    def _forget(self) -> None:
        self.place_of: dict[int, int] = {}
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._states: list[Tensor] = []
        self._logits: list[Tensor] = []

    def learn(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Pend the pairs of committed tokens with the features [tokens, ...] of the nodes at which they were drawn."""
        self.pend(tokens if self._shifted else [self._root, *tokens[:-1]], features)
        self._root = tokens[-1]
        self._forget()

    def pend(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Add pairs as they are."""
        self.tokens += tokens
        if features is not None:
            self.features.append(features)

    def take_older(self) -> tuple[list[int], Tensor | None]:
        """All pending pairs but the last, which alone stays: tokens, and features [tokens, ...] where the head reads any."""
        tokens, self.tokens = self.tokens[:-1], self.tokens[-1:]
        if not self.features:
            return tokens, None
        features = torch.cat(self.features)
        # A copy, since a view of the last row would keep all of them in memory.
        self.features = [features[-1:].clone()]
        return tokens, features[:-1]

    def pending(self, length: int) -> RowNodes:
        """The pending pairs as a chain behind `length` cached ones."""
        count = len(self.tokens)
        return RowNodes(length, range(-1, count - 1), range(count))

    def begin(self, state: Tensor, logits: Tensor) -> None:
        """The pending pairs are cached; what came out at the last of them: [1, hidden] and [1, drafts]."""
        self.tokens, self.features = [], []
        self.place_of = {0: 0}
        self._states, self._logits = [state], [logits]

    def missing(self, frontier: Frontier | None) -> list[int]:
        """Nodes to be fed next: asked for, or above one that is, and with a parent that has been fed."""
        if frontier is None:
            return []
        known, parents = self.place_of, frontier.tree.parents
        found: dict[int, None] = {}
        for asked in frontier.nodes:
            node = asked
            while node not in known and parents[node] not in known:
                node = parents[node]
            if node not in known:
                found[node] = None
        return list(found)

    def add(self, tree: TreeSketch, nodes: Sequence[int]) -> tuple[list[int], Tensor]:
        """Enter nodes that are about to be fed; their tokens, and the states [nodes, hidden] that their parents predicted."""
        places = [self.place_of[tree.parents[node]] for node in nodes]
        for node, parent in zip(nodes, places, strict=True):
            self.place_of[node] = len(self.parents) + 1
            self.parents.append(parent - 1)
            self.depths.append(0 if parent == 0 else self.depths[parent - 1] + 1)
        read = nodes if self._shifted else [tree.parents[node] for node in nodes]
        return [tree.tokens[node] for node in read], self._gather(self._states, places)

    def drafted(self, length: int, count: int) -> RowNodes:
        """All nodes fed so far, of which the last `count` are fed now."""
        return RowNodes(length, self.parents, self.depths, len(self.parents) - count)

    def answer(self, states: Tensor, logits: Tensor) -> None:
        """What the head said at the nodes that `add` entered."""
        self._states.append(states)
        self._logits.append(logits)

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """[nodes, drafts] of nodes that have been fed."""
        return self._gather(self._logits, [self.place_of[node] for node in nodes])

    def _gather(self, parts: list[Tensor], places: list[int]) -> Tensor:
        """Rows by place; mostly they are of the last part."""
        last = parts[-1]
        before = sum(map(len, parts)) - len(last)
        inside = [place - before for place in places]
        if inside == list(range(len(last))):
            return last
        return last[inside] if min(inside) >= 0 else torch.cat(parts)[places]
