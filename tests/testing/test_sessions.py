"""Wrong drafters whose fault shows only in a tree, in a later step or beside certain rows: each is refuted with its fault."""

from typing import ClassVar

import pytest
import torch

from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates
from specdec.testing import CheckFailed, check_drafter


class Reads(DraftSession):
    """Two candidates by the last six tokens of the context."""

    def __init__(self, drafter, texts):
        self.drafter = drafter
        self.texts = [list(text) for text in texts]
        self.owed = [[] for _ in texts]

    def context(self, row, tree, node):
        return [*self.texts[row], *tree.path(node)]

    def scores(self, row, tree, node):
        key = 0
        for token in self.context(row, tree, node)[-6:]:
            key = (31 * key + token + 7) % 1009
        ids = torch.arange(self.drafter.vocab_size)
        return ((key + 3) * (ids + 5) * 7919 % 1009 / 300.0).log_softmax(-1)

    def answer(self, row, frontier):
        best = [self.scores(row, frontier.tree, node).topk(2) for node in frontier.nodes]
        return Candidates(tuple(tuple(b.indices.tolist()) for b in best), tuple(tuple(b.values.tolist()) for b in best))

    def expand(self, frontiers):
        return [None if frontier is None else self.answer(row, frontier) for row, frontier in enumerate(frontiers)]

    def observe(self, committed, scored):
        for row, news in enumerate(committed):
            self.learn(row, news.tokens)

    def learn(self, row, tokens):
        self.texts[row] += tokens

    def keep(self, rows):
        self.texts = [self.texts[row] for row in rows]
        self.owed = [self.owed[row] for row in rows]

    def join(self, other):
        self.texts += other.texts
        self.owed += other.owed


class ReadsAllNodesBefore(Reads):
    def context(self, row, tree, node):
        return [*self.texts[row], *tree.tokens[1 : node + 1]]


class SwapsSiblings(Reads):
    def answer(self, row, frontier):
        made, parents = super().answer(row, frontier), frontier.tree.parents
        places = list(range(len(frontier.nodes)))
        for place in places[1:]:
            if frontier.nodes[place - 1] and parents[frontier.nodes[place]] == parents[frontier.nodes[place - 1]]:
                places[place - 1 : place + 1] = places[place - 1 : place + 1][::-1]
        return Candidates(tuple(made.tokens[p] for p in places), tuple(made.scores[p] for p in places))


class ByNodeNumber(Reads):
    def scores(self, row, tree, node):
        return super().scores(row, tree, node).roll(node % 2)


class LearnsNothingFromARejection(Reads):
    """What is emitted alone is entered with the next accepted draft."""

    def learn(self, row, tokens):
        self.owed[row] += tokens
        if len(tokens) > 1:
            self.texts[row] += self.owed[row]
            self.owed[row] = []


class LateFromTheSecondStep(Reads):
    def learn(self, row, tokens):
        if self.owed[row]:
            self.texts[row] += self.owed[row][1:]
            self.owed[row] = [None, *tokens]
        else:
            self.texts[row] += tokens
            self.owed[row] = [None]


class ForgetsTheThird(Reads):
    def learn(self, row, tokens):
        self.texts[row] += [token for place, token in enumerate(tokens) if place != 2]


class ForgetsTheLastOfMany(Reads):
    def learn(self, row, tokens):
        self.texts[row] += tokens[:-1] if len(tokens) > 2 else tokens


class KeepCutsLongTexts(Reads):
    def keep(self, rows):
        super().keep(rows)
        self.texts = [text[:-1] if len(text) > 12 else text for text in self.texts]


class KeepsTheFirstAlone(Reads):
    def keep(self, rows):
        super().keep(rows if len(rows) > 1 else [0])


class JoinsInReverse(Reads):
    def join(self, other):
        self.texts += other.texts[::-1]
        self.owed += other.owed


class CountsThoseThatAsk(Reads):
    def expand(self, frontiers):
        asking = [row for row, frontier in enumerate(frontiers) if frontier is not None]
        answers = {row: self.answer(place, frontiers[row]) for place, row in enumerate(asking)}
        return [answers.get(row) for row in range(len(frontiers))]


class EightRows(Reads):
    def answer(self, row, frontier):
        return super().answer(row if row < 8 else 0, frontier)


class AddsANode(Reads):
    def answer(self, row, frontier):
        made = super().answer(row, frontier)
        frontier.tree.add(0, 0)
        return made


class WorstFirst(Reads):
    def answer(self, row, frontier):
        made = super().answer(row, frontier)
        return Candidates(tuple(t[::-1] for t in made.tokens), tuple(s[::-1] for s in made.scores))


def drafter_of(kind):
    class Made(Drafter[PartOptions]):
        name: ClassVar[str] = "made"
        Options = PartOptions

        def __init__(self, vocab_size):
            self.vocab_size = vocab_size

        @classmethod
        def declares(cls, options):
            return DrafterDeclaration(gives=Gives.CANDIDATES)

        @classmethod
        def build(cls, options, tools):
            return cls(tools.target.facts.vocab_size)

        def open(self, starts):
            return kind(self, [(*start.prompt, start.first_token) for start in starts])

    return Made


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (ReadsAllNodesBefore, r"asked with nothing but its path in the tree.*on tree\.path\(node\) alone"),
        (SwapsSiblings, r"asked with nothing but its path in the tree.*on tree\.path\(node\) alone"),
        (ByNodeNumber, r"asked with nothing but its path in the tree.*on tree\.path\(node\) alone"),
        (LearnsNothingFromARejection, r"as if it had not been told token 1 of the 1 that step 1 emitted"),
        (LateFromTheSecondStep, r"as if it had not been told .* step 2 emitted"),
        (ForgetsTheThird, r"as if it had not been told token 3 of the 5 that step 1 emitted"),
        (ForgetsTheLastOfMany, r"as if it had not been told token 5 of the 5 that step 1 emitted"),
        (KeepCutsLongTexts, r"after `keep` and `observe` each row is still itself: .* have left"),
        (KeepsTheFirstAlone, r"after `keep` and `observe` each row is still itself: .* have left"),
        (JoinsInReverse, r"after two rows have joined two others, row 2 answers .*, in their order"),
        (CountsThoseThatAsk, r"row \d gets another answer when row 0 asks nothing"),
        (EightRows, r"asked in one batch of 23 rows"),
        (AddsANode, r"expand changed the tree that it was asked about; work on a copy"),
        (WorstFirst, r"expected the best first"),
    ],
)
def test_a_drafter_that_is_wrong_only_sometimes_is_refuted(session, message):
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_drafter(drafter_of(session))


def test_the_drafter_of_which_they_are_variants_passes():
    assert check_drafter(drafter_of(Reads)).proofs == 6
