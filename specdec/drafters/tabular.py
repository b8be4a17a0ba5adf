"""A drafter whose q is a table, or is read off the target: the exact fake of every proof."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, Target
from specdec.interfaces.probability_table import ProbabilityTable, TableOptions
from specdec.interfaces.proposals import Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, Scored


class Mode(StrEnum):
    """Where q comes from."""

    TABLE = "table"
    ORACLE = "oracle"
    ANTI = "anti"
    MIXED = "mixed"


class TabularDrafterOptions(TableOptions):
    """The drafter's table, or how it looks at the target."""

    vocab: Annotated[int, Field(ge=0, description="columns of every row; 0 outside mode 'table'")] = 0
    mode: Annotated[
        Mode,
        Field(
            description="table: q from rows; oracle: q is p; anti: p without its likeliest token; "
            "mixed: oracle at even positions, anti at odd ones"
        ),
    ] = Mode.TABLE
    target_ids: Annotated[
        tuple[int, ...] | None, Field(description="target id of each column, for a vocabulary that is a part of the target's")
    ] = None

    @model_validator(mode="after")
    def _check_mode(self) -> "TabularDrafterOptions":
        if self.mode is Mode.TABLE and not (self.vocab and (self.rows or self.random)):
            raise ValueError("mode 'table' needs `vocab`, and `rows` or `random`")
        if self.mode is Mode.TABLE and self.target_ids is not None and len(self.target_ids) != self.vocab:
            raise ValueError(f"target_ids has {len(self.target_ids)} entries; vocab is {self.vocab}")
        if self.target_ids is not None and len(set(self.target_ids)) != len(self.target_ids):
            raise ValueError("target_ids names a token twice")
        return self


class Tabular(Drafter[TabularDrafterOptions]):
    """Gives the logits of its table for the committed tokens and the path of each node."""

    name: ClassVar[str] = "tabular"
    Options: ClassVar[type[TabularDrafterOptions]] = TabularDrafterOptions

    def __init__(self, options: TabularDrafterOptions, target: Target | None) -> None:
        self._options = options
        self._target = target
        self._table = ProbabilityTable(options) if options.mode is Mode.TABLE else None
        self._target_ids = None if options.target_ids is None else torch.tensor(options.target_ids)

    @classmethod
    def declares(cls, options: TabularDrafterOptions) -> DrafterDeclaration:
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS)

    @classmethod
    def build(cls, options: TabularDrafterOptions, tools: BuildTools) -> "Tabular":
        if tools.target is None:
            if options.mode is not Mode.TABLE:
                raise TargetMismatch(f"drafter 'tabular' in mode '{options.mode}' looks at the target, and there is none")
            return cls(options, None)
        vocab_size = tools.target.facts.vocab_size
        highest = max(options.target_ids) if options.target_ids else options.vocab - 1
        if highest >= vocab_size:
            raise TargetMismatch(f"drafter 'tabular' proposes token {highest}; the target has {vocab_size} tokens")
        return cls(options, tools.target)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        return TabularSession(self, [[*start.prompt, start.first_token] for start in starts])

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[columns] float64 unwarped draft logits after `tokens`."""
        if self._table is not None:
            return self._table.log_probs(tokens)
        if self._target is None:
            raise TargetMismatch("this drafter looks at the target, and there is none")
        row = self._target.prefill([tokens], Features()).scored[0].logits[0].to(torch.float64)
        mode = self._options.mode
        if mode is Mode.ANTI or (mode is Mode.MIXED and len(tokens) % 2):
            row = _without_best(row)
        return row if self._target_ids is None else row[self._target_ids]

    def answer(self, tokens: Sequence[int], frontier: Frontier) -> Proposal:
        """What it proposes at the frontier of a tree whose root is the last of `tokens`."""
        rows = [self.logits([*tokens, *frontier.tree.path(node)]) for node in frontier.nodes]
        return Distributions(torch.stack(rows), self._target_ids)


def _without_best(row: Tensor) -> Tensor:
    """The row without its argmax; uniform over the other tokens where these are impossible."""
    best = int(row.argmax())
    others = row.clone()
    others[best] = float("-inf")
    if not bool((others > float("-inf")).any()):
        others = torch.zeros_like(row)
        others[best] = float("-inf")
    return others


class TabularSession(DraftSession):
    """The tokens of each row, root included."""

    def __init__(self, drafter: Tabular, sequences: list[list[int]]) -> None:
        self._drafter = drafter
        self._sequences = sequences

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        pairs = zip(self._sequences, frontiers, strict=True)
        return [None if frontier is None else self._drafter.answer(tokens, frontier) for tokens, frontier in pairs]

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        for tokens, news in zip(self._sequences, committed, strict=True):
            tokens.extend(news.tokens)

    def keep(self, rows: Sequence[int]) -> None:
        self._sequences = [self._sequences[row] for row in rows]

    def join(self, other: Self) -> None:
        self._sequences += other._sequences
