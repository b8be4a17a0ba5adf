"""Growing the draft trees of a batch: all sequences' builders advance in lock step, the drafter answers them at once."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from torch import Tensor

from specdec.decoding.contract_checks import ProposalCheck
from specdec.decoding.pruning import trimmed
from specdec.decoding.sequence import Sequence
from specdec.errors import NumericsError, PluginError
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import Drafter, DraftSession, Target, TreeBuilder
from specdec.interfaces.proposals import Answer, Budget, Candidates, DraftProbs, Frontier, Memory
from specdec.sampling.distribution import draft_probs
from specdec.sampling.rng import DraftRng
from specdec.trees.draft_tree import DraftTree, Draw, TreeError, root_only
from specdec.trees.tree_rules import validate

UNBOUNDED_NODES = 4096
"""Nodes of a draft where the target names no limit."""


@dataclass(slots=True)
class GrowingDraft:
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


T = TypeVar("T")


class Attempt(Protocol):
    """Does what concerns one sequence; None where that failed, and the others go on."""

    def __call__(self, sequence: Sequence, work: Callable[[], T]) -> T | None: ...


def at_once(sequence: Sequence, work: Callable[[], T]) -> T | None:
    """An attempt whose errors are raised."""
    return work()


class DraftRunner:
    """Drives a builder and a drafter; checks what both return."""

    def __init__(self, *, target: Target, drafter: Drafter, builder: TreeBuilder) -> None:
        self._target = target
        self._drafter = drafter
        self._builder = builder
        self._drafts = drafter.declaration.drafts
        self._max_depth = drafter.declaration.max_depth
        self._draws = builder.declaration.draw is not Draw.DETERMINISTIC
        self._coupled = builder.declaration.draw is Draw.COUPLED
        self._proposals = ProposalCheck(type(drafter).name, target.facts.vocab_size)
        self._drafting = PartGuard("drafter", drafter)
        self._building = PartGuard("tree builder", builder)

    def grow(
        self,
        sequences: list[Sequence],
        session: DraftSession,
        batch_memory: Memory | None = None,
        *,
        queue: bool = False,
        attempt: Attempt = at_once,
    ) -> list[DraftTree]:
        """A tree per sequence, at its root.

        batch_memory: what builders keep about these sequences together. queue: whether others wait. attempt: does what concerns
        one sequence; where it returns None after a failure, that sequence has no draft. Raises PluginError for a drafter or
        builder that breaks its contract.
        """
        shared = Memory() if batch_memory is None else batch_memory
        budgets = [self._budget(sequence, len(sequences), shared, queue=queue) for sequence in sequences]
        drafts = [attempt(s, partial(self._begin, s, budget)) for s, budget in zip(sequences, budgets, strict=True)]
        while any(draft is not None and draft.asked is not None for draft in drafts):
            frontiers = [None if draft is None else draft.asked for draft in drafts]
            with self._drafting:
                answers = session.expand(frontiers)
            if not isinstance(answers, list | tuple):
                raise PluginError(f"drafter '{self._drafter.name}' answered with {type(answers).__name__}, not with a list")
            if len(answers) != len(sequences):
                raise PluginError(f"drafter '{self._drafter.name}' answered {len(answers)} sequences; {len(sequences)} asked")
            for sequence, draft, frontier, proposal in zip(sequences, drafts, frontiers, answers, strict=True):
                if draft is not None and frontier is not None:
                    attempt(sequence, partial(self._continue, sequence, draft, frontier, proposal))
                    draft.asked = draft.asked if sequence.is_live else None
        trees = [
            attempt(s, partial(self._finished, s, budget, draft))
            for s, budget, draft in zip(sequences, budgets, drafts, strict=True)
        ]
        return trimmed([tree or _undrafted(sequence) for sequence, tree in zip(sequences, trees, strict=True)])

    def _begin(self, sequence: Sequence, budget: Budget) -> GrowingDraft | None:
        if not self._drafts or budget.depth < 1 or budget.nodes < 1:
            return None
        with self._building:
            rng = sequence.rng.draft if self._coupled else _Uncoupled(sequence.rng.draft, self._builder.name)
            draft = GrowingDraft(self._builder.grow(sequence.tokens[-1], len(sequence.tokens) - 1, budget, rng))
        self._advance(draft, None)
        return draft

    def _continue(self, sequence: Sequence, draft: GrowingDraft, frontier: Frontier, proposal: object) -> None:
        self._advance(draft, self._answer(sequence, frontier, proposal))

    def _advance(self, draft: GrowingDraft, answer: Answer | None) -> None:
        try:
            with self._building:
                draft.advance(answer)
        except NumericsError as error:
            raise PluginError(f"drafter '{self._drafter.name}': {error}") from error
        asked = draft.asked
        if asked is None:
            return
        if not isinstance(asked, Frontier):
            raise PluginError(f"tree builder '{self._builder.name}' yielded {type(asked).__name__}, not a Frontier")
        if not all(type(node) is int and 0 <= node < len(asked.tree) for node in asked.nodes):
            nodes = ", ".join(map(str, asked.nodes))
            raise PluginError(
                f"tree builder '{self._builder.name}' asked for nodes {nodes} of a tree of {len(asked.tree)} nodes"
            )

    def _budget(self, sequence: Sequence, num_sequences: int, batch_memory: Memory, *, queue: bool) -> Budget:
        limit = self._target.facts.max_tree_nodes
        nodes = UNBOUNDED_NODES if limit is None else limit - 1
        last = sequence.records[-1] if sequence.records else None
        room = sequence.remaining - 1
        return Budget(
            nodes=nodes,
            depth=room if self._max_depth is None else min(room, self._max_depth),
            stop_ids=sequence.warper.stop_ids,
            rows=num_sequences,
            queue=queue,
            last=last,
            memory=sequence.memory,
            batch=batch_memory,
        )

    def _answer(self, sequence: Sequence, frontier: Frontier, answer: object) -> Answer:
        proposal = self._proposals.check(answer, len(frontier.nodes))
        if not self._draws or isinstance(proposal, Candidates):
            return proposal
        if self._coupled and not sequence.warper.sampling.temperature:
            return proposal
        truncation, vocab_size = sequence.warper.sampling.draft_truncation, self._target.facts.vocab_size
        try:
            q = draft_probs(proposal.logits, proposal.target_ids, vocab_size, truncation)
        except NumericsError as error:
            raise PluginError(f"drafter '{self._drafter.name}': {proposal.unusable()}") from error
        return DraftProbs(q, proposal.source)

    def _finished(self, sequence: Sequence, budget: Budget, draft: GrowingDraft | None) -> DraftTree:
        root = len(sequence.tokens) - 1
        if draft is None:
            return _undrafted(sequence)
        tree, name = draft.tree, self._builder.name
        if not isinstance(tree, DraftTree):
            raise PluginError(f"tree builder '{name}' returned {type(tree).__name__}, not a DraftTree")
        try:
            with self._building:
                validate(tree, vocab_size=self._target.facts.vocab_size)
        except TreeError as error:
            raise PluginError(f"tree builder '{name}' returned a tree that is none: {error}") from error
        if self._coupled and (others := set(tree.draw_kind.values()) - {Draw.COUPLED}):
            raise PluginError(f"tree builder '{name}' declares coupled draws and stamps some as {' and '.join(sorted(others))}")
        if tree.root_position != root or tree.tokens[0] != sequence.tokens[-1]:
            raise PluginError(f"tree builder '{name}' returned a tree with another root than it was given")
        if tree.num_drafted > budget.nodes or tree.max_depth > budget.depth:
            raise PluginError(
                f"tree builder '{name}' returned {tree.num_drafted} nodes of depth {tree.max_depth}; "
                f"the budget is {budget.nodes} nodes of depth {budget.depth}"
            )
        return replace(tree, source=_sources(tree, draft.origins)) if draft.origins and not tree.source else tree


def _undrafted(sequence: Sequence) -> DraftTree:
    return root_only(sequence.tokens[-1], len(sequence.tokens) - 1)


def _sources(tree: DraftTree, origins: Mapping[tuple[int, ...], int]) -> tuple[int, ...]:
    """By node, whose it is; the root is nobody's, and counts as the first drafter's."""
    return tuple(origins.get(tuple(tree.path_tokens(node)), 0) for node in range(len(tree)))
