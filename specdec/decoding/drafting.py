"""Growing the draft trees of a batch: all sequences' builders advance in lock step, the drafter answers them at once."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from specdec.decoding.contract_checks import ProposalCheck
from specdec.decoding.pruning import trimmed
from specdec.decoding.sequence import Row
from specdec.errors import NumericsError, PluginError
from specdec.interfaces.declarations import BuilderDeclaration, DrafterDeclaration, VerifierDeclaration
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, DraftSession, Target, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Candidates, DraftProbs, Frontier, Memory
from specdec.sampling.distribution import draft_probs
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeError, root_only, validate

UNBOUNDED_NODES = 4096
"""Nodes of a draft where the target names no limit."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the parts of a decoder declared."""

    drafter: DrafterDeclaration
    builder: BuilderDeclaration
    verifier: VerifierDeclaration


@dataclass(slots=True)
class _Growing:
    """One sequence's draft while it grows: the builder, and what it last asked. origins: by drafted path, whose it is."""

    steps: Generator[Frontier, Answer, DraftTree]
    asked: Frontier | None = None
    tree: DraftTree | None = None
    origins: dict[tuple[int, ...], int] = field(default_factory=dict)

    def advance(self, answer: Answer | None) -> None:
        if isinstance(answer, Candidates) and answer.sources and self.asked is not None:
            for node, tokens, sources in zip(self.asked.nodes, answer.tokens, answer.sources, strict=True):
                above = tuple(self.asked.tree.path(node))
                self.origins.update(((*above, token), source) for token, source in zip(tokens, sources, strict=True))
        try:
            self.asked = next(self.steps) if answer is None else self.steps.send(answer)
        except StopIteration as stop:
            self.asked, self.tree = None, stop.value


class _Uncoupled(DraftRng):
    """The draft RNG of a builder that declares other than COUPLED draws: the target's noise is hidden from it."""

    def __init__(self, inner: DraftRng, builder: str) -> None:
        self._inner = inner
        self._builder = builder

    def draw(self, probs: Tensor, count: int, *, replacement: bool) -> list[int]:
        return self._inner.draw(probs, count, replacement=replacement)

    def flip(self, probability: float) -> bool:
        return self._inner.flip(probability)

    def couple(self, probs: Tensor, count: int, position: int) -> list[int]:
        raise PluginError(
            f"tree builder '{self._builder}' drafts with the noise by which the target draws, and does not declare it: "
            "its draws are not independent of the verifier's; declare draw=Draw.COUPLED, which only 'match' accepts"
        )


class Grower:
    """Drives a builder and a drafter; checks what both return."""

    def __init__(self, *, target: Target, drafter: Drafter, builder: TreeBuilder, declared: Declared) -> None:
        self._target = target
        self._drafter = drafter
        self._builder = builder
        self._drafts = declared.drafter.drafts
        self._draws = declared.builder.draw is not Draw.DETERMINISTIC
        self._coupled = declared.builder.draw is Draw.COUPLED
        self._proposals = ProposalCheck(type(drafter).name, target.facts.vocab_size)
        self._drafting = PartGuard("drafter", drafter)
        self._building = PartGuard("tree builder", builder)

    def grow(
        self, rows: list[Row], session: DraftSession, batch: Memory | None = None, *, queue: bool = False
    ) -> list[DraftTree]:
        """A tree per row, at its root. batch: what builders keep about these rows together. queue: whether others wait.

        Raises PluginError for a drafter or builder that breaks its contract.
        """
        shared = Memory() if batch is None else batch
        budgets = [self._budget(row, len(rows), shared, queue=queue) for row in rows]
        growing = [self._begin(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        while any(one is not None and one.asked is not None for one in growing):
            frontiers = [None if one is None else one.asked for one in growing]
            with self._drafting:
                answers = session.expand(frontiers)
            if not isinstance(answers, list | tuple):
                raise PluginError(f"drafter '{self._drafter.name}' answered with {type(answers).__name__}, not with a list")
            if len(answers) != len(rows):
                raise PluginError(f"drafter '{self._drafter.name}' answered {len(answers)} sequences; {len(rows)} asked")
            for row, one, frontier, proposal in zip(rows, growing, frontiers, answers, strict=True):
                if one is not None and frontier is not None:
                    self._advance(one, self._answer(row, frontier, proposal))
        return trimmed([self._finished(row, budget, one) for row, budget, one in zip(rows, budgets, growing, strict=True)])

    def _begin(self, row: Row, budget: Budget) -> _Growing | None:
        if not self._drafts or budget.depth < 1 or budget.nodes < 1:
            return None
        with self._building:
            rng = row.rng.draft if self._coupled else _Uncoupled(row.rng.draft, self._builder.name)
            one = _Growing(self._builder.grow(row.tokens[-1], len(row.tokens) - 1, budget, rng))
        self._advance(one, None)
        return one

    def _advance(self, one: _Growing, answer: Answer | None) -> None:
        try:
            with self._building:
                one.advance(answer)
        except NumericsError as error:
            raise PluginError(f"drafter '{self._drafter.name}': {error}") from error
        asked = one.asked
        if asked is None:
            return
        if not isinstance(asked, Frontier):
            raise PluginError(f"tree builder '{self._builder.name}' yielded {type(asked).__name__}, not a Frontier")
        if not all(type(node) is int and 0 <= node < len(asked.tree) for node in asked.nodes):
            nodes = ", ".join(map(str, asked.nodes))
            raise PluginError(
                f"tree builder '{self._builder.name}' asked for nodes {nodes} of a tree of {len(asked.tree)} nodes"
            )

    def _budget(self, row: Row, num_rows: int, batch: Memory, *, queue: bool) -> Budget:
        limit = self._target.facts.max_tree_nodes
        nodes = UNBOUNDED_NODES if limit is None else limit - 1
        last = row.records[-1] if row.records else None
        return Budget(
            nodes=nodes,
            depth=row.remaining - 1,
            stop_ids=row.warper.stop_ids,
            rows=num_rows,
            queue=queue,
            last=last,
            memory=row.memory,
            batch=batch,
        )

    def _answer(self, row: Row, frontier: Frontier, answer: object) -> Answer:
        proposal = self._proposals.check(answer, len(frontier.nodes))
        if not self._draws or isinstance(proposal, Candidates):
            return proposal
        if self._coupled and not row.warper.sampling.temperature:
            return proposal
        truncation, vocab_size = row.warper.sampling.draft_truncation, self._target.facts.vocab_size
        try:
            q = draft_probs(proposal.logits, proposal.target_ids, vocab_size, truncation)
        except NumericsError as error:
            raise PluginError(f"drafter '{self._drafter.name}': {proposal.unusable()}") from error
        return DraftProbs(q, proposal.source)

    def _finished(self, row: Row, budget: Budget, one: _Growing | None) -> DraftTree:
        root = len(row.tokens) - 1
        if one is None:
            return root_only(row.tokens[-1], root)
        tree, name = one.tree, self._builder.name
        if not isinstance(tree, DraftTree):
            raise PluginError(f"tree builder '{name}' returned {type(tree).__name__}, not a DraftTree")
        try:
            with self._building:
                validate(tree, vocab_size=self._target.facts.vocab_size)
        except TreeError as error:
            raise PluginError(f"tree builder '{name}' returned a tree that is none: {error}") from error
        if self._coupled and (others := set(tree.draw_kind.values()) - {Draw.COUPLED}):
            raise PluginError(f"tree builder '{name}' declares coupled draws and stamps some as {' and '.join(sorted(others))}")
        if tree.root_position != root or tree.tokens[0] != row.tokens[-1]:
            raise PluginError(f"tree builder '{name}' returned a tree with another root than it was given")
        if tree.num_drafted > budget.nodes or tree.max_depth > budget.depth:
            raise PluginError(
                f"tree builder '{name}' returned {tree.num_drafted} nodes of depth {tree.max_depth}; "
                f"the budget is {budget.nodes} nodes of depth {budget.depth}"
            )
        return replace(tree, source=_sources(tree, one.origins)) if one.origins and not tree.source else tree


def _sources(tree: DraftTree, origins: Mapping[tuple[int, ...], int]) -> tuple[int, ...]:
    """By node, whose it is; the root is nobody's, and counts as the first drafter's."""
    return tuple(origins.get(tuple(tree.path_tokens(node)), 0) for node in range(len(tree)))
