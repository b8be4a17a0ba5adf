"""`mixture`: several drafters grow one tree, and every node goes to whichever believes in it most."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import Field

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, DraftStart, Frontier, Proposal, Ranked, top_of_each
from specdec.interfaces.results import Committed, HiddenStates, Scored, united
from specdec.performance.online_calibration import Calibration
from specdec.trees.draft_tree import TreeSketch, follow

PATIENCE = 4.0
"""Expected hits of a part after which its success within the request weighs as much as its own estimates."""


class MixtureOptions(PartOptions):
    """Options of `mixture`."""

    parts: Annotated[
        tuple[dict[str, Any], ...], Field(min_length=2, max_length=8, description="the drafters: [{use: NAME, ...}, ...]")
    ]
    candidates: Annotated[int, Field(ge=1, le=64, description="most different next tokens of a part for a node")] = 8
    sure: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="where a part that only counts is as sure as this, those that compute are not asked; 1: always asked",
        ),
    ] = 0.9


Parts: TypeAlias = tuple[Drafter, ...]
"""Drafters, and what each declares."""


class MixtureDrafter(Drafter[MixtureOptions]):
    """Offers the tokens of all its parts at every node, each with the highest probability that a part gives it.

    Estimates of different parts are made comparable by how often each part's came true in this sequence. Parts that only count
    are asked first; where one of them is sure of a token, those that run a model are not asked, there or below. Only candidates
    are given, never a q: the best tokens of several distributions follow none of them, so that no verifier may read one.
    """

    name: ClassVar[str] = "mixture"
    Options: ClassVar[type[PartOptions]] = MixtureOptions

    def __init__(self, options: MixtureOptions, parts: Parts) -> None:
        self._options = options
        self._parts = parts

    @classmethod
    def declares(cls, options: MixtureOptions) -> DrafterDeclaration:
        """Candidates; what its parts need is added where they are known."""
        return DrafterDeclaration(gives=Gives.CANDIDATES, drafters=options.parts)

    @classmethod
    def build(cls, options: MixtureOptions, tools: BuildTools) -> "MixtureDrafter":
        """Raises TargetMismatch where its parts have not been built."""
        if len(tools.drafters) != len(options.parts):
            raise TargetMismatch(f"a mixture of {len(options.parts)} drafters was given {len(tools.drafters)}")
        return cls(options, tools.drafters)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session of every part."""
        declared = [drafter.declaration for drafter in self._parts]
        features = united(Features(), [declares.features for declares in declared])
        views = [_View(features, declares.features) for declares in declared]
        sessions = [
            drafter.open([DraftStart(s.prompt, s.first_token, view.of(s.hidden)) for s in starts])
            for drafter, view in zip(self._parts, views, strict=True)
        ]
        return MixtureSession(self._options, sessions, views, declared, len(starts))


class _View:
    """What one part sees of the hidden states that all parts together asked for."""

    def __init__(self, offered: Features, wanted: Features) -> None:
        self._last = wanted.last
        self._layers = [offered.layers.index(layer) for layer in wanted.layers]
        self._all = offered == wanted
        self._cache: tuple[HiddenStates, HiddenStates] | None = None

    def of(self, hidden: HiddenStates) -> HiddenStates:
        """The part's own; the same object for the same object, so that samples of one prompt are told by it."""
        if self._all:
            return hidden
        if self._cache is None or self._cache[0] is not hidden:
            layers = hidden.layers[:, self._layers] if hidden.layers is not None and self._layers else None
            self._cache = hidden, HiddenStates(hidden.last if self._last else None, layers)
        return self._cache[1]


class _Row:
    """One sequence: what each part said at the nodes of this step's tree, and how far it is to be believed."""

    def __init__(self, num_parts: int) -> None:
        self._calibrations = [Calibration(patience=PATIENCE) for _ in range(num_parts)]
        self._tree: TreeSketch | None = None
        self._said: list[dict[int, list[tuple[int, float]]]] = [{} for _ in range(num_parts)]

    def learn(self, part: int, frontier: Frontier, best: Ranked) -> None:
        """Keep a part's best tokens with their estimates."""
        self._tree = frontier.tree
        for node, tokens, scores in zip(frontier.nodes, *best, strict=True):
            self._said[part][node] = [(token, math.exp(min(score, 0.0))) for token, score in zip(tokens, scores, strict=True)]

    def asked(self, part: int, frontier: Frontier, quick: Sequence[int], sure: float, deepest: int | None) -> Frontier | None:
        """The nodes at which a part that computes is worth its time: no quick one is sure, and it was asked above.

        deepest: levels that the part drafts; None: any.
        """
        parents, said = frontier.tree.parents, self._said[part]
        nodes = [
            node
            for node in frontier.nodes
            if (node == 0 or parents[node] in said) and all(self._best(q, node) < sure for q in quick)
        ]
        nodes = nodes if deepest is None else [node for node in nodes if frontier.tree.depths[node] < deepest]
        return Frontier(frontier.tree, tuple(nodes)) if nodes else None

    def _best(self, part: int, node: int) -> float:
        return max((self._calibrations[part](p) for _, p in self._said[part].get(node, ())), default=0.0)

    def answer(self, frontier: Frontier) -> Candidates:
        """All tokens of all parts, the most believed first, and whose they are."""
        rows = [self._merged(node) for node in frontier.nodes]
        return Candidates(
            tuple(tuple(token for token, _, _ in row) for row in rows),
            tuple(tuple(math.log(p) for _, p, _ in row) for row in rows),
            sources=tuple(tuple(part for _, _, part in row) for row in rows),
        )

    def _merged(self, node: int) -> list[tuple[int, float, int]]:
        best: dict[int, tuple[float, int]] = {}
        for part, (said, calibration) in enumerate(zip(self._said, self._calibrations, strict=True)):
            for token, estimate in said.get(node, ()):
                believed = calibration(estimate)
                if believed > best.get(token, (0.0, 0))[0]:
                    best[token] = (believed, part)
        return sorted(((token, p, part) for token, (p, part) in best.items()), key=lambda one: -one[1])

    def observe(self, tokens: Sequence[int]) -> None:
        """Hold every part's estimates along the way against what was emitted, and forget the tree."""
        for node, token in () if self._tree is None else follow(self._tree, tokens):
            for said, calibration in zip(self._said, self._calibrations, strict=True):
                for offered, estimate in said.get(node, ()):
                    calibration.learn(estimate, offered == token)
        self._tree = None
        self._said = [{} for _ in self._said]


class MixtureSession(DraftSession):
    """The parts' sessions, and what each declares. A part that gives candidates only counts, which costs next to nothing."""

    def __init__(
        self,
        options: MixtureOptions,
        sessions: Sequence[DraftSession],
        views: Sequence[_View],
        declared: Sequence[DrafterDeclaration],
        num_rows: int,
    ) -> None:
        self._options = options
        self._sessions = sessions
        self._views = views
        self._quick = [part for part, declares in enumerate(declared) if declares.gives is Gives.CANDIDATES]
        self._others = [part for part, declares in enumerate(declared) if declares.gives is not Gives.CANDIDATES]
        self._deepest = [declares.max_depth for declares in declared]
        self._rows = [_Row(len(sessions)) for _ in range(num_rows)]

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        """Candidates for every frontier node."""
        for part in self._quick:
            self._ask(part, frontiers)
        for part in self._others:
            pairs = zip(self._rows, frontiers, strict=True)
            deepest, sure = self._deepest[part], self._options.sure
            wanted = [None if f is None else row.asked(part, f, self._quick, sure, deepest) for row, f in pairs]
            if any(wanted):
                self._ask(part, wanted)
        return [None if f is None else row.answer(f) for row, f in zip(self._rows, frontiers, strict=True)]

    def _ask(self, part: int, frontiers: Sequence[Frontier | None]) -> None:
        answers = self._sessions[part].expand(frontiers)
        asked = [
            (row, frontier, answer)
            for row, frontier, answer in zip(self._rows, frontiers, answers, strict=True)
            if frontier is not None and answer is not None
        ]
        ranked = top_of_each([answer for _, _, answer in asked], self._options.candidates)
        for (row, frontier, _), best in zip(asked, ranked, strict=True):
            row.learn(part, frontier, best)

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        """Every part learns what was emitted."""
        for row, news in zip(self._rows, committed, strict=True):
            row.observe(news.tokens)
        for session, view in zip(self._sessions, self._views, strict=True):
            own = [Committed(news.tokens, news.nodes, view.of(news.hidden), news.tree) for news in committed]
            seen = [Scored(answer.logits, view.of(answer.hidden), answer.first_node) for answer in scored]
            session.observe(own, seen)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the other rows."""
        self._rows = [self._rows[row] for row in rows]
        for session in self._sessions:
            session.keep(rows)

    def join(self, other: Self) -> None:
        """Append the other's rows, in every part."""
        self._rows += other._rows
        for session, news in zip(self._sessions, other._sessions, strict=True):
            session.join(news)
