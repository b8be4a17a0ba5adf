"""Draft sessions as the decode loop opens, asks and tells them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Drafter, DraftSession, Target
from specdec.interfaces.proposals import DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.testing.answers import alike, answer_row, answer_words, difference
from specdec.testing.report import CheckFailed
from specdec.trees.draft_tree import Draw, TreeSketch

LENGTHS = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 40, 50, 57, 63, 64, 65, 100, 128, 130)
"""Tokens of texts that are asked about alone and beside others, root included."""

Text: TypeAlias = tuple[int, ...]

LEVELS = ((0,), (1, 2), (3, 4), (5,), (6,))
"""Nodes of the tree that rows are asked about."""

FRONTIER = sum(len(level) for level in LEVELS)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Opens sessions of one drafter, and compares what rows answer beside others with what they answer alone."""

    drafter: Drafter
    target: Target
    texts: Sequence[Text]

    def alone(self) -> list[Proposal | None]:
        """What each row answers in a session of its own."""
        return [self.ask([text])[0] for text in self.texts]

    def same_again(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless another session answers the same."""
        self._same(alone, self.alone(), "asked again by another session")

    def same_in_a_batch(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless rows of one batch answer as they do alone: three of equal length, and some of unequal."""
        self._same(alone, self.ask(self.texts), "asked in one batch")
        size = self.target.facts.vocab_size
        longer = [tuple((self.texts[0] * length)[place] % size for place in range(length)) for length in LENGTHS]
        single = [self.ask([text])[0] for text in longer]
        for begin in range(0, len(longer), 4):
            some = longer[begin : begin + 4]
            where = f"asked beside others, after {', '.join(str(len(text)) for text in some)} tokens"
            self._same(single[begin : begin + 4], self.ask(some), where)
        self._same(single, self.ask(longer), f"asked in one batch of {len(longer)} rows")

    def same_where_others_ask_nothing(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless rows answer as they do alone when one of the others asks nothing."""
        for silent in range(len(self.texts)):
            answers = self.expand(self.open(self.texts), self.texts, silent=(silent,))
            if answers[silent] is not None:
                raise CheckFailed(f"row {silent} asks nothing and is answered {answer_words(answers[silent])}; expected None")
            wanted = [None if row == silent else answer for row, answer in enumerate(alone)]
            self._same(wanted, answers, f"when row {silent} asks nothing")

    def same_level_by_level(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless a node has the same answer when its level, or nothing but its path, is asked for."""
        for row, (text, whole) in enumerate(zip(self.texts, alone, strict=True)):
            session, frontier = self.open([text]), _frontier(text)
            for depth, nodes in enumerate(LEVELS):
                part = Frontier(_upto(frontier.tree, nodes[-1]), nodes)
                answer = session.expand([part])[0]
                for place, node in enumerate(nodes):
                    got = None if answer is None else answer_row(answer, place)
                    self._same_node(row, depth, whole, node, got, "asked level by level")
            for node in range(1, FRONTIER):
                got = self._along_a_path(text, frontier.tree, node)
                self._same_node(
                    row, frontier.tree.depths[node], whole, node, got, "asked with nothing but its path in the tree"
                )

    def _same_node(self, row: int, depth: int, whole: Proposal | None, node: int, answer: Proposal | None, how: str) -> None:
        wanted = None if whole is None else answer_row(whole, node)
        if not alike(wanted, answer):
            raise CheckFailed(
                f"row {row} gets {answer_words(answer)} at depth {depth} of its draft, {how}; asked at once about a tree of "
                f"{FRONTIER} nodes it was {answer_words(wanted)}: an answer may depend on the committed tokens and on "
                "tree.path(node) alone"
            )

    def _along_a_path(self, text: Text, tree: TreeSketch, node: int) -> Proposal | None:
        session, chain = self.open([text]), TreeSketch(tree.tokens[0], tree.root_position)
        answer = session.expand([Frontier(chain, (0,))])[0]
        for token in tree.path(node):
            last = chain.add(len(chain) - 1, token)
            answer = session.expand([Frontier(chain, (last,))])[0]
        return answer

    def open(self, texts: Sequence[Text]) -> DraftSession:
        """A session of these texts, the last token of each its root."""
        session: Any = self.drafter.open([DraftStart(tuple(t[:-1]), t[-1], HiddenStates()) for t in texts])
        if not isinstance(session, DraftSession):
            raise CheckFailed(f"open returned {type(session).__name__}; expected a DraftSession")
        return session

    def ask(self, texts: Sequence[Text]) -> list[Proposal | None]:
        """What a new session of these texts answers."""
        return self.expand(self.open(texts), texts)

    def expand(self, session: DraftSession, texts: Sequence[Text], silent: Sequence[int] = ()) -> list[Proposal | None]:
        """What its rows answer, which by now have these texts. silent: rows that ask nothing."""
        frontiers = [None if row in silent else _frontier(text) for row, text in enumerate(texts)]
        answers: Any = session.expand(frontiers)
        if not isinstance(answers, list | tuple) or len(answers) != len(texts):
            got = len(answers) if isinstance(answers, list | tuple) else type(answers).__name__
            raise CheckFailed(f"expand answered {got}; expected a list with one answer for each of {len(texts)} rows")
        for frontier, text in zip(frontiers, texts, strict=True):
            if frontier is not None and _edges(frontier.tree) != _edges(_frontier(text).tree):
                raise CheckFailed("expand changed the tree that it was asked about; work on a copy")
        return list(answers)

    def learn(self, session: DraftSession, texts: Sequence[Text], news: Sequence[Text]) -> None:
        """Tell each row what it emitted: drafts that were accepted, each beside one that was not, and the next token."""
        scored, committed = [], []
        for text, tokens in zip(texts, news, strict=True):
            sketch, nodes = TreeSketch(text[-1], len(text) - 1), [0]
            for token in tokens[:-1]:
                sketch.add(nodes[-1], (token + 1) % self.target.facts.vocab_size)
                nodes.append(sketch.add(nodes[-1], token))
            state = self.target.prefill([list(text[:-1])], Features()).state
            tree = sketch.freeze(Draw.DETERMINISTIC)
            scored.append(Scored(self.target.score(state, [tree])[0].logits))
            committed.append(Committed(tokens, tuple(nodes), tree=tree))
        session.observe(committed, scored)

    def _same(self, wanted: Sequence[Proposal | None], got: Sequence[Proposal | None], when: str) -> None:
        for row, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if not alike(one, other):
                here, single = difference(other, one)
                raise CheckFailed(f"row {row} gets another answer {when}: {here}; alone it was {single}")


def _frontier(text: Sequence[int]) -> Frontier:
    """The root, two children of it, a child of each with the same token, and two levels more below the first of them."""
    sketch = TreeSketch(text[-1], len(text) - 1)
    last = max(*text[:2], 1)
    first, second = (sketch.add(0, token) for token in (text[0], last if last != text[0] else last - 1))
    below, _ = (sketch.add(parent, text[-1]) for parent in (first, second))
    sketch.add(sketch.add(below, text[0]), last)
    return Frontier(sketch, tuple(range(len(sketch))))


def _edges(tree: TreeSketch) -> tuple[list[int], list[int]]:
    return tree.tokens, tree.parents


def _upto(tree: TreeSketch, node: int) -> TreeSketch:
    """The tree as it was when `node` was its last."""
    sketch = TreeSketch(tree.tokens[0], tree.root_position)
    for number in range(1, node + 1):
        sketch.add(tree.parents[number], tree.tokens[number])
    return sketch
