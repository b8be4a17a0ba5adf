"""The session of a draft model: its own cache, the tree that it scores, and committed tokens that wait to be cached."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import DraftSession, Target, TargetState
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored, TargetFacts
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch

STAND_IN = 0
"""What the draft model reads for a token that its smaller vocabulary lacks: a worse draft, never a wrong output."""

MOST_UNCACHED = 64
"""Tokens of a sequence that wait for a question: in a mixture it may be long in coming, and then has to be answered at once."""


class _Row:
    """One sequence. tail: committed tokens that the draft model has not cached; the last of them is the root.

    sketch: what was scored since the last commit, in the draft model's numbering: the tail as a chain, then drafted nodes.
    """

    def __init__(self, facts: TargetFacts, tail: list[int]) -> None:
        self._facts = facts
        self.tail = tail
        self.sketch: TreeSketch | None = None
        self._node_of: dict[int, int] = {}
        self._child: dict[tuple[int, int], int] = {}
        self._logits: list[Tensor] = []

    def tree(self, cached: int, frontier: Frontier | None) -> DraftTree:
        """The tree to score: the tail, and the frontier's nodes with their ancestors as far as there is room."""
        if self.sketch is None:
            self.sketch = TreeSketch(_readable(self.tail[0], self._facts), cached)
            for node, token in enumerate(self.tail[1:]):
                self.sketch.add(node, _readable(token, self._facts))
            self._node_of = {0: len(self.tail) - 1}
        if frontier is not None:
            for node in frontier.nodes:
                self._add(self.sketch, frontier.tree, node)
        return self.sketch.freeze(Draw.DETERMINISTIC)

    def _add(self, sketch: TreeSketch, asked: TreeSketch, node: int) -> None:
        path = []
        while node not in self._node_of:
            path.append(node)
            node = asked.parents[node]
        for new in reversed(path):
            parent = self._node_of[asked.parents[new]]
            if not self._has_room(sketch, parent):
                return
            self._node_of[new] = sketch.add(parent, _readable(asked.tokens[new], self._facts))
            self._child[parent, asked.tokens[new]] = self._node_of[new]

    def _has_room(self, sketch: TreeSketch, parent: int) -> bool:
        limit = self._facts.max_tree_nodes
        position = sketch.root_position + sketch.depths[parent] + 1
        return _fits(position, self._facts) and (limit is None or len(sketch) < limit)

    @property
    def num_scored(self) -> int:
        """Nodes of the sketch whose logits are known."""
        return len(self._logits)

    def learn(self, scored: Scored) -> None:
        """Keep the new nodes' logits."""
        self._logits.extend(scored.logits)

    def answer(self, frontier: Frontier, columns: int) -> Distributions:
        """[frontier, columns] logits; a node without room has no possible token."""
        if not self._logits:
            return Distributions(torch.full((len(frontier.nodes), columns), float("-inf"), device=self._facts.device))
        impossible = torch.full_like(self._logits[0], float("-inf"))
        known = [self._node_of.get(node) for node in frontier.nodes]
        rows = [impossible if node is None else self._logits[node] for node in known]
        return Distributions(torch.stack(rows)[:, :columns])

    def older(self, cached: int, most: int) -> DraftTree:
        """The tail without the root as a chain of at most so many nodes, or the root alone where there is no more of it."""
        chain = TreeSketch(_readable(self.tail[0], self._facts), cached)
        for node, token in enumerate(self.tail[1:-1][: most - 1]):
            chain.add(node, _readable(token, self._facts))
        return chain.freeze(Draw.DETERMINISTIC)

    def observe(self, tokens: Sequence[int]) -> list[int] | None:
        """The path in the scored tree to be cached: the tail, and what was emitted of it, but never the new root."""
        if self.sketch is None:
            self.tail = [*self.tail, *tokens]
            return None
        node = len(self.tail) - 1
        path = list(range(1, len(self.tail)))
        taken = 0
        while taken < len(tokens) - 1 and (node, tokens[taken]) in self._child:
            node = self._child[node, tokens[taken]]
            path.append(node)
            taken += 1
        self.tail = list(tokens[taken:])
        self.sketch, self._node_of, self._child, self._logits = None, {}, {}, []
        return path


class ModelSession(DraftSession):
    """The draft model's state over the rows of a batch.

    slots: the rows that the state covers, ascending. A row whose root is beyond the draft model's context leaves the state
    for good; it is answered with logits of minus infinity, so that nothing is drafted.

    Of `Target.score` this asks that a tree without an unscored node is answered with logits [0, vocab].
    """

    def __init__(self, model: Target, columns: int, state: TargetState | None, rows: list[_Row], slots: list[int]) -> None:
        self._model = model
        self._columns = columns
        self._state = state
        self._rows = rows
        self._slots = slots

    @property
    def cached_lengths(self) -> tuple[int | None, ...]:
        """Tokens in the draft cache by row: those committed, without `uncached`; None for a row out of room."""
        lengths = dict(zip(self._slots, self._state.lengths, strict=True)) if self._state is not None else {}
        return tuple(lengths.get(number) for number in range(len(self._rows)))

    @property
    def uncached(self) -> tuple[tuple[int, ...], ...]:
        """Committed tokens by row that are not in the cache yet, the root last."""
        return tuple(tuple(row.tail) for row in self._rows)

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """One forward of the draft model for all rows, over the nodes that it has not scored in this step."""
        self._retire()
        if self._state is not None and any(frontiers[n] is not None for n in self._slots):
            cached = self._state.lengths
            trees = [self._rows[n].tree(cached[slot], frontiers[n]) for slot, n in enumerate(self._slots)]
            if any(len(tree) > self._rows[n].num_scored for n, tree in zip(self._slots, trees, strict=True)):
                for n, scored in zip(self._slots, self._model.score(self._state, trees), strict=True):
                    self._rows[n].learn(scored)
        pairs = zip(self._rows, frontiers, strict=True)
        return [None if frontier is None else row.answer(frontier, self._columns) for row, frontier in pairs]

    def _retire(self) -> None:
        """Drop the rows whose root has no position left; only before a step's first forward can there be new ones."""
        if self._state is None:
            return
        ends = [cached + len(self._rows[n].tail) - 1 for n, cached in zip(self._slots, self._state.lengths, strict=True)]
        kept = [slot for slot, end in enumerate(ends) if _fits(end, self._model.facts)]
        self._keep_slots(kept)

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Cache what was emitted and scored here; the rest waits in the tail for the next forward."""
        paths = [row.observe(news.tokens) for row, news in zip(self._rows, committed, strict=True)]
        of_state = [paths[n] for n in self._slots]
        if self._state is not None and any(path is not None for path in of_state):
            self._model.commit(self._state, of_state)
        limit = self._model.facts.max_tree_nodes
        most = MOST_UNCACHED if limit is None else min(MOST_UNCACHED, limit)
        if any(len(self._rows[n].tail) > most for n in self._slots):
            self._catch_up(most)

    def _catch_up(self, most: int) -> None:
        """Cache every row's tail but the root, at most so many tokens at once."""
        self._retire()
        while self._state is not None and any(len(self._rows[n].tail) > 1 for n in self._slots):
            rows = [self._rows[n] for n in self._slots]
            chains = [row.older(cached, most) for row, cached in zip(rows, self._state.lengths, strict=True)]
            self._model.score(self._state, chains)
            taken = [len(chain) if len(row.tail) > 1 else 0 for row, chain in zip(rows, chains, strict=True)]
            self._model.commit(self._state, [range(1, count) if count else None for count in taken])
            for row, count in zip(rows, taken, strict=True):
                row.tail = row.tail[count:]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows, here and in the draft model's state."""
        self._keep_slots([slot for slot, n in enumerate(self._slots) if n in set(rows)])
        self._rows = [self._rows[n] for n in rows]
        self._slots = [new for new, n in enumerate(rows) if n in set(self._slots)]

    def join(self, other: Self) -> None:
        """Append the other's rows, here and in the draft model's state."""
        if self._state is None:
            self._state = other._state
        elif other._state is not None:
            self._model.join(self._state, other._state)
        self._slots += [len(self._rows) + n for n in other._slots]
        self._rows += other._rows

    def _keep_slots(self, slots: list[int]) -> None:
        if self._state is None or len(slots) == len(self._slots):
            return
        self._slots = [self._slots[slot] for slot in slots]
        if slots:
            self._model.keep(self._state, slots)
        else:
            self._state = None


def open_session(model: Target, vocab_size: int, starts: Sequence[DraftStart]) -> ModelSession:
    """Prefill the draft model with the prompts. vocab_size: the target's."""
    facts = model.facts
    rows = [_Row(facts, [start.first_token]) for start in starts]
    fitting = [n for n, start in enumerate(starts) if _fits(len(start.prompt), facts)]
    prompts = [[_readable(token, facts) for token in starts[n].prompt] for n in fitting]
    state = model.prefill(prompts, Features()).state if prompts else None
    return ModelSession(model, min(vocab_size, facts.vocab_size), state, rows, fitting)


def _fits(position: int, facts: TargetFacts) -> bool:
    return facts.max_positions is None or position < facts.max_positions


def _readable(token: int, facts: TargetFacts) -> int:
    return token if token < facts.vocab_size else STAND_IN
