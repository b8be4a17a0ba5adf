"""A drafter that does what another one does, and writes down what it offered and what the target said."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import DrafterDeclaration
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.sampling.distribution import draft_probs
from specdec.sampling.params import TruncationParams

Context = tuple[int, ...]
"""All tokens before the one in question, prompt included."""


@dataclass(slots=True)
class Notes:
    """By context: the drafter's answer there (and its row), the logits of the verification pass, and the features handed on.

    every: 1 in so many contexts whose logits are kept.
    """

    every: int = 4
    offers: dict[Context, tuple[Proposal, int]] = field(default_factory=dict)
    logits: dict[Context, Tensor] = field(default_factory=dict)
    hidden: dict[Context, HiddenStates] = field(default_factory=dict)

    def draft_logits(self, context: Context, vocab_size: int) -> Tensor | None:
        """[vocab] float64 unwarped log-probabilities of the drafter; None where it was not asked, or offered nothing."""
        if context not in self.offers:
            return None
        answer, row = self.offers[context]
        if isinstance(answer, Candidates):
            weights = torch.full((vocab_size,), float("-inf"), dtype=torch.float64)
            for token, score in reversed(list(zip(answer.tokens[row], answer.scores[row], strict=True))):
                weights[token] = score
            return weights.log_softmax(-1) if answer.tokens[row] else None
        q = draft_probs(answer.logits[row : row + 1], answer.target_ids, vocab_size, TruncationParams(temperature=1.0))[0]
        return q.log().cpu() if bool(q.any()) else None

    def clear(self) -> None:
        """Forget the texts so far."""
        for notes in (self.offers, self.logits, self.hidden):
            notes.clear()


def overheard(decoder: Decoder, notes: Notes) -> Decoder:
    """The decoder, with `notes` taken. The drafter's answers are not touched."""
    return decoder.replace(drafter=_listening(decoder.drafter, notes))


def _listening(drafter: Drafter, notes: Notes) -> Drafter:
    class Listening(Drafter[PartOptions]):
        name: ClassVar[str] = drafter.name
        Options: ClassVar[type[PartOptions]] = drafter.Options

        @classmethod
        def declares(cls, options: PartOptions) -> DrafterDeclaration:
            return drafter.declares(options)

        @classmethod
        def build(cls, options: PartOptions, tools: BuildTools) -> Drafter:
            return drafter.build(options, tools)

        def open(self, starts: Sequence[DraftStart]) -> DraftSession:
            return _Session(drafter.open(starts), [(*start.prompt, start.first_token) for start in starts], notes)

    made = Listening()
    made.declaration = drafter.declaration
    return made


class _Session(DraftSession):
    """texts: by row, all committed tokens, the root last."""

    def __init__(self, inner: DraftSession, texts: list[Context], notes: Notes) -> None:
        self._inner = inner
        self._texts = texts
        self._notes = notes

    def expand(self, frontiers: Sequence[Frontier | None]) -> list[Proposal | None]:
        answers = self._inner.expand(frontiers)
        for text, frontier, answer in zip(self._texts, frontiers, answers, strict=True):
            if frontier is None or not isinstance(answer, Distributions | Candidates):
                continue
            for row, node in enumerate(frontier.nodes):
                if node == 0 or _is_chain(frontier):
                    self._notes.offers[(*text, *frontier.tree.path(node))] = (answer, row)
        return answers

    def observe(self, committed: Sequence[Committed], scored: Sequence[Scored]) -> None:
        for number, (news, said) in enumerate(zip(committed, scored, strict=True)):
            for index, node in enumerate(news.nodes):
                context = (*self._texts[number], *news.tokens[:index])
                if len(context) % self._notes.every == 0:
                    self._notes.logits[context] = said.logits[node - said.first_node].clone()
                self._notes.hidden[context] = news.hidden.rows([index])
            self._texts[number] = (*self._texts[number], *news.tokens)
        self._inner.observe(committed, scored)

    def keep(self, rows: Sequence[int]) -> None:
        self._texts = [self._texts[row] for row in rows]
        self._inner.keep(rows)

    def join(self, other: Self) -> None:
        self._texts += other._texts
        self._inner.join(other._inner)


def _is_chain(frontier: Frontier) -> bool:
    """In a tree, what is asked below a child may depend on its siblings, and with it the side on which one bets."""
    return len(set(frontier.tree.parents)) == len(frontier.tree.parents)
