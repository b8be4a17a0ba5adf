"""A runtime for models whose rotary factors change at their original length, for *all* tokens of a forward.

What follows n tokens is computed by the short factors where n is at most the original length, else by the long ones, keys of
earlier tokens included: so `transformers.generate` does it, which computes its cache anew at the crossing. A tree that reaches
over the crossing is scored twice, and each node's answer taken from the factors that its own position has.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec.errors import NumericsError
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import TargetState
from specdec.interfaces.results import HiddenStates, Scored
from specdec.targets.admission import Draft, check_joined, check_prompts, kept_nodes, new_nodes, own_state
from specdec.targets.probing import ProbedRuntime
from specdec.targets.rotary import LongFactors
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch


@dataclass(slots=True, eq=False)
class _Part:
    """Sequences that are computed by one set of factors: a state of the inner runtime, and whose each of its rows is."""

    long: bool
    state: Any = None
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TwoRangeState(TargetState):
    """tokens: committed and cached, by sequence. crossing: those of `short` whose trees reach over the crossing, once more."""

    features: Features
    tokens: list[list[int]]
    short: _Part = field(default_factory=lambda: _Part(long=False))
    long: _Part = field(default_factory=lambda: _Part(long=True))
    crossing: _Part = field(default_factory=lambda: _Part(long=True))
    drafts: list[Draft] = field(default_factory=list)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.tokens))

    def check_integrity(self) -> None:
        if sorted([*self.short.rows, *self.long.rows]) != list(range(len(self.tokens))):
            raise NumericsError(f"{len(self.tokens)} sequences; {self.short.rows} and {self.long.rows} are computed")
        for part in (self.short, self.long, self.crossing):
            if part.state is not None:
                part.state.check_integrity()
                if list(part.state.lengths) != [len(self.tokens[row]) for row in part.rows]:
                    raise NumericsError(f"rows of {self.lengths} tokens; the cache holds {part.state.lengths}")


class InnerRuntime(ProbedRuntime, Protocol):
    """The runtime that scores each of the two ranges."""

    def keep(self, state: Any, rows: Sequence[int]) -> None:
        """Drop all rows but these."""

    def fork(self, state: Any, copies: Sequence[int]) -> Any:
        """A state with copies of rows."""

    def join(self, state: Any, other: Any) -> None:
        """Append another state's rows."""


class TwoRangeRuntime:
    """Runs `inner` on sequences apart by the factors that they have. original: tokens up to which these are the short ones."""

    def __init__(self, inner: InnerRuntime, factors: LongFactors, original: int) -> None:
        self.call, self.masks, self.limits = inner.call, inner.masks, inner.limits
        self.original = original
        self._inner: Any = inner
        self._factors = factors

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> tuple[TwoRangeState, tuple[Scored, ...]]:
        """A fresh state, and the answer at each prompt's last token. Raises as the inner runtime does."""
        check_prompts(prompts, self.limits, self.call.vocab_size)
        state = TwoRangeState(features, [list(prompt) for prompt in prompts], drafts=[Draft() for _ in prompts])
        rows = range(len(prompts))
        answers = self._begin(state, state.short, [row for row in rows if len(prompts[row]) <= self.original])
        answers |= self._begin(state, state.long, [row for row in rows if len(prompts[row]) > self.original])
        return state, tuple(answers[row] for row in rows)

    def score(self, given: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        """Logits and hidden states of all nodes not yet scored since the last commit."""
        state = own_state(given, TwoRangeState)
        firsts = [
            new_nodes(self.limits, row, len(state.tokens[row]), state.drafts[row], tree).first for row, tree in enumerate(trees)
        ]
        arrived = [row for row in state.short.rows if len(state.tokens[row]) >= self.original]
        self._keep(state.short, set(state.short.rows) - set(arrived))
        self._begin(state, state.long, arrived)
        over = [row for row in state.short.rows if trees[row].root_position + trees[row].max_depth >= self.original]
        self._begin(state, state.crossing, [row for row in over if row not in state.crossing.rows])
        low = {row: self._low(trees[row].parents, len(state.tokens[row])) for row in state.short.rows}
        answers = self._score(state.short, {row: _part_of(trees[row], nodes) for row, nodes in low.items()})
        answers |= self._score(state.long, dict(enumerate(trees)))
        for row, answer in self._score(state.crossing, dict(enumerate(trees))).items():
            answers[row] = _merged(answers[row], answer, low[row], range(firsts[row], len(trees[row])))
        state.drafts = [Draft(tree.tokens, tree.parents) for tree in trees]
        return [answers[row] for row in range(len(trees))]

    def commit(self, given: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        """Keep root and path of each row; None keeps nothing. Raises SpecdecError for a path that was not scored."""
        state = own_state(given, TwoRangeState)
        kept = kept_nodes(state.drafts, paths)
        beyond = {row for row in state.crossing.rows if len(state.tokens[row]) + len(kept[row]) > self.original}
        numbers = {row: self._low(state.drafts[row].parents, len(state.tokens[row])) for row in state.short.rows}
        self._commit(
            state.short, [None if row in beyond else _renumbered(paths[row], numbers[row]) for row in state.short.rows]
        )
        self._commit(state.long, [paths[row] for row in state.long.rows])
        self._commit(state.crossing, [paths[row] if row in beyond else None for row in state.crossing.rows])
        for row, nodes in enumerate(kept):
            state.tokens[row] += [state.drafts[row].tokens[node] for node in nodes]
        self._keep(state.short, set(state.short.rows) - beyond)
        self._keep(state.crossing, beyond)
        self._join(state.long, state.crossing, 0)
        state.crossing = _Part(long=True)
        state.drafts = [Draft() for _ in kept]

    def keep(self, given: TargetState, rows: Sequence[int]) -> None:
        """Drop all rows but these, ascending; their drafts stay."""
        state = own_state(given, TwoRangeState)
        number = {row: place for place, row in enumerate(rows)}
        for part in (state.short, state.long, state.crossing):
            self._keep(part, set(rows))
            part.rows = [number[row] for row in part.rows]
        state.tokens, state.drafts = [state.tokens[row] for row in rows], [state.drafts[row] for row in rows]

    def fork(self, given: TargetState, copies: Sequence[int]) -> TwoRangeState:
        """A state in which row r occurs copies[r] times, without drafts."""
        state = own_state(given, TwoRangeState)
        origin = [row for row, count in enumerate(copies) for _ in range(count)]
        twin = TwoRangeState(state.features, [list(state.tokens[row]) for row in origin], drafts=[Draft() for _ in origin])
        for mine, theirs in ((state.short, twin.short), (state.long, twin.long)):
            if any(copies[row] for row in mine.rows):
                theirs.state = self._inner.fork(mine.state, [copies[row] for row in mine.rows])
                theirs.rows = [place for row in mine.rows for place, own in enumerate(origin) if own == row]
        return twin

    def join(self, given: TargetState, other: TargetState) -> None:
        """Append the rows of another state, without drafts. Raises SpecdecError for one with other features."""
        state, news = own_state(given, TwoRangeState), own_state(other, TwoRangeState)
        check_joined(state, news)
        self._join(state.short, news.short, len(state.tokens))
        self._join(state.long, news.long, len(state.tokens))
        state.tokens += news.tokens
        state.drafts += [Draft() for _ in news.drafts]

    def _begin(self, state: TwoRangeState, part: _Part, rows: list[int]) -> dict[int, Scored]:
        """Compute the caches of these sequences from their tokens and append them to a part; answers at their last tokens."""
        if not rows:
            return {}
        with self._factors.taken(part.long):
            begun, scored = self._inner.prefill([state.tokens[row] for row in rows], state.features)
        self._join(part, _Part(part.long, begun, rows), 0)
        return dict(zip(rows, scored, strict=True))

    def _score(self, part: _Part, trees: dict[int, DraftTree]) -> dict[int, Scored]:
        if part.state is None:
            return {}
        with self._factors.taken(part.long):
            scored = self._inner.score(part.state, [trees[row] for row in part.rows])
        return dict(zip(part.rows, scored, strict=True))

    def _commit(self, part: _Part, paths: list[Sequence[int] | None]) -> None:
        if part.state is not None:
            self._inner.commit(part.state, paths)

    def _keep(self, part: _Part, rows: Collection[int]) -> None:
        places = [place for place, row in enumerate(part.rows) if row in rows]
        if len(places) < len(part.rows):
            if places:
                self._inner.keep(part.state, places)
            part.state, part.rows = part.state if places else None, [part.rows[place] for place in places]

    def _join(self, part: _Part, other: _Part, first: int) -> None:
        """Append the other's rows, which are counted from `first` on."""
        if other.state is None:
            return
        if part.state is None:
            part.state = other.state
        else:
            self._inner.join(part.state, other.state)
        part.rows = [*part.rows, *(first + row for row in other.rows)]

    def _low(self, parents: Sequence[int], root: int) -> dict[int, int]:
        """The nodes of a tree with the short factors, and their numbers among these. root: the root's position."""
        depths: list[int] = []
        for parent in parents:
            depths.append(depths[parent] + 1 if depths else 0)
        nodes = [node for node, depth in enumerate(depths) if root + depth < self.original]
        return {node: number for number, node in enumerate(nodes)}


def _part_of(tree: DraftTree, nodes: dict[int, int]) -> DraftTree:
    """Root and these nodes of a tree, whose parents are among them."""
    if len(nodes) == len(tree):
        return tree
    sketch = TreeSketch(tree.tokens[0], tree.root_position)
    for node in list(nodes)[1:]:
        sketch.add(nodes[tree.parents[node]], tree.tokens[node])
    return sketch.freeze(Draw.DETERMINISTIC)


def _renumbered(path: Sequence[int] | None, nodes: dict[int, int]) -> list[int] | None:
    return None if path is None else [nodes[node] for node in path]


def _merged(low: Scored, high: Scored, nodes: dict[int, int], wanted: range) -> Scored:
    """The answers at new nodes: those in `nodes`, by their numbers, from `low`, all others from `high`."""
    if not wanted:
        return Scored(high.logits[:0], first_node=wanted.start)
    picked = [(low, nodes[node] - low.first_node) if node in nodes else (high, node - high.first_node) for node in wanted]
    return Scored(
        torch.stack([scored.logits[row] for scored, row in picked]),
        HiddenStates(
            _stacked([None if scored.hidden.last is None else scored.hidden.last[row] for scored, row in picked]),
            _stacked([None if scored.hidden.layers is None else scored.hidden.layers[row] for scored, row in picked]),
        ),
        wanted.start,
    )


def _stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    present = [row for row in rows if row is not None]
    return torch.stack(present) if present else None
