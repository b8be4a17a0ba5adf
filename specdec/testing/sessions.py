"""Draft sessions as the decode loop uses them: asked, told what was emitted, some rows leaving and others joining."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Drafter, DraftSession, Target
from specdec.interfaces.proposals import DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.losslessness.exact.toy_models import shown
from specdec.testing.answers import alike, answer_row, answer_words
from specdec.testing.report import CheckFailed
from specdec.trees.draft_tree import Draw, TreeSketch

LENGTHS = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 40, 50, 57, 63, 64, 65, 100, 128, 130)
"""Tokens of texts that are asked about alone and beside others, root included."""

STEPS = 5
"""That a row takes, one token or two at a time."""

Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Opens sessions of one drafter, and compares what rows answer beside others with what they answer alone."""

    drafter: Drafter
    target: Target
    texts: Sequence[Text]

    def alone(self) -> list[Proposal | None]:
        """What each row answers in a session of its own."""
        return [self._ask([text])[0] for text in self.texts]

    def same_in_a_batch(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless rows of one batch answer as they do alone: three of equal length, and some of unequal."""
        self._same(alone, self._ask(self.texts), "asked in one batch")
        size = self.target.facts.vocab_size
        longer = [tuple((self.texts[0] * length)[place] % size for place in range(length)) for length in LENGTHS]
        for begin in range(0, len(longer), 4):
            some = longer[begin : begin + 4]
            single = [self._ask([text])[0] for text in some]
            where = f"asked beside others, after {', '.join(str(len(text)) for text in some)} tokens"
            self._same(single, self._ask(some), where)

    def same_level_by_level(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless a node has the same answer when its level is asked for by itself, as builders do."""
        for row, (text, whole) in enumerate(zip(self.texts, alone, strict=True)):
            session = self._open([text])
            frontier = _frontier(text)
            for level, node in enumerate(frontier.nodes):
                answer = session.expand([Frontier(_upto(frontier.tree, node), (node,))])[0]
                wanted = None if whole is None else answer_row(whole, level)
                if not alike(wanted, answer):
                    raise CheckFailed(
                        f"row {row} gets {answer_words(answer)} at depth {level} of its draft, asked level by level; asked at "
                        f"once it was {answer_words(wanted)}"
                    )

    def learns(self) -> None:
        """Raise CheckFailed for a row that answers as if it had not been told what was emitted."""
        text = self.texts[0]
        news = (text[0], (text[-1] + 1) % self.target.facts.vocab_size)
        longer = (*text, *news)
        session, deaf = self._open([text]), self._open([text])
        for one in (session, deaf):
            self._expand(one, [text])
        self._learn(session, [text], [news])
        after, fresh = self._expand(session, [longer])[0], self._ask([longer])[0]
        try:
            untold = self._expand(deaf, [longer])[0]
        except Exception:  # it may rely on being told
            return
        if alike(after, untold) and not alike(after, fresh):
            raise CheckFailed(
                f"it answers {answer_words(after)}, as if it had not been told that {list(news)} was emitted; a new session "
                f"for that text answers {answer_words(fresh)}: `observe` must enter the committed tokens (after {shown(text)})"
            )

    def same_after_steps(self) -> None:
        """Raise CheckFailed unless three rows that learn tokens of their own, step after step, answer as they do alone."""
        self._steps(range(len(self.texts)), "each has learned its tokens", "`observe` must enter each row's own tokens")

    def same_after_leaving(self) -> None:
        """The same where one of them leaves before the first step: the second, the first or the last."""
        for gone in sorted(range(len(self.texts)), key=lambda row: row != 1):
            left = [row for row in range(len(self.texts)) if row != gone]
            when = f"row {gone} of {len(self.texts)} has left, and each other has learned its tokens"
            hint = "`keep` must drop rows by their place, and `observe` reports the rows that are left"
            self._steps(left, when, hint)

    def _steps(self, left: Sequence[int], when: str, hint: str) -> None:
        together = self._open(self.texts)
        self._expand(together, self.texts)
        if len(left) < len(self.texts):
            together.keep(list(left))
        texts = [self.texts[row] for row in left]
        for step in range(STEPS):
            news = [(text[step], text[-1])[: 1 + (row + step) % 2] for row, text in zip(left, texts, strict=True)]
            self._learn(together, texts, news)
            texts = [(*text, *tokens) for text, tokens in zip(texts, news, strict=True)]
            answers = self._expand(together, texts)
            if step not in (0, 1, STEPS - 1):
                continue
            for row, text, answer in zip(left, texts, answers, strict=True):
                self._compare(answer, self._follow(row, text, left, step), f"after {when} in step {step + 1}", row, hint)

    def _follow(self, row: int, text: Text, left: Sequence[int], step: int) -> Proposal | None:
        """What a session of its own answers that has learned the same tokens in the same steps."""
        single, known = self._open([self.texts[row]]), self.texts[row]
        self._expand(single, [known])
        for number in range(step + 1):
            size = 1 + (row + number) % 2
            news = text[len(known) : len(known) + size]
            self._learn(single, [known], [news])
            known = (*known, *news)
            answer = self._expand(single, [known])[0]
        return answer

    def same_after_joining(self) -> None:
        """Of three rows the first leaves, the others learn a token, and it begins again: all answer as if they were alone."""
        order = [*self.texts[1:], self.texts[0]]
        old = order[:-1]
        together = self._open(self.texts)
        self._expand(together, self.texts)
        together.keep(range(1, len(self.texts)))
        texts: list[Text] = [tuple(text) for text in old]
        for rows, begin in ((old, order[-1:]), (order, [])):
            news = [(text[0],) for text in rows]
            self._learn(together, texts, news)
            texts = [(*text, *tokens) for text, tokens in zip(texts, news, strict=True)]
            if begin:
                together.join(self._open(begin))
                texts += [tuple(text) for text in begin]
            for row, (answer, text) in enumerate(zip(self._expand(together, texts), texts, strict=True)):
                alone = self._token_by_token(order[row], text)
                hint = "`join` must append the other session's rows behind its own"
                self._compare(answer, alone, "after a row has joined two others", row, hint)

    def _token_by_token(self, begin: Text, text: Text) -> Proposal | None:
        single = self._open([begin])
        for end in range(len(begin), len(text)):
            self._expand(single, [text[:end]])
            self._learn(single, [text[:end]], [text[end : end + 1]])
        return self._expand(single, [text])[0]

    def _open(self, texts: Sequence[Text]) -> DraftSession:
        session: Any = self.drafter.open([DraftStart(tuple(t[:-1]), t[-1], HiddenStates()) for t in texts])
        if not isinstance(session, DraftSession):
            raise CheckFailed(f"open returned {type(session).__name__}; expected a DraftSession")
        return session

    def _ask(self, texts: Sequence[Text]) -> list[Proposal | None]:
        return self._expand(self._open(texts), texts)

    def _expand(self, session: DraftSession, texts: Sequence[Text]) -> list[Proposal | None]:
        answers: Any = session.expand([_frontier(text) for text in texts])
        if not isinstance(answers, list | tuple) or len(answers) != len(texts):
            got = len(answers) if isinstance(answers, list | tuple) else type(answers).__name__
            raise CheckFailed(f"expand answered {got}; expected a list with one answer for each of {len(texts)} rows")
        return list(answers)

    def _learn(self, session: DraftSession, texts: Sequence[Text], news: Sequence[Text]) -> None:
        scored, committed = [], []
        for text, tokens in zip(texts, news, strict=True):
            sketch = TreeSketch(text[-1], len(text) - 1)
            for token in tokens[:-1]:
                sketch.add(len(sketch) - 1, token)
            state = self.target.prefill([list(text[:-1])], Features()).state
            scored.append(Scored(self.target.score(state, [sketch.freeze(Draw.DETERMINISTIC)])[0].logits))
            committed.append(Committed(tokens, tuple(range(len(tokens)))))
        session.observe(committed, scored)

    def _same(self, wanted: Sequence[Proposal | None], got: Sequence[Proposal | None], when: str) -> None:
        for row, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if not alike(one, other):
                raise CheckFailed(
                    f"row {row} gets another answer {when}: {answer_words(other)}; alone it was {answer_words(one)}"
                )

    def same_again(self, alone: Sequence[Proposal | None]) -> None:
        """Raise CheckFailed unless another session answers the same."""
        self._same(alone, self.alone(), "asked again by another session")

    def _compare(self, answer: Proposal | None, alone: Proposal | None, when: str, row: int, hint: str) -> None:
        if not alike(alone, answer):
            raise CheckFailed(
                f"{when}, row {row} answers {answer_words(answer)}; alone it answers {answer_words(alone)}: {hint}"
            )


def _frontier(text: Sequence[int]) -> Frontier:
    """The root, a child of it, and the child's child."""
    sketch = TreeSketch(text[-1], len(text) - 1)
    child = sketch.add(0, text[0])
    sketch.add(child, text[-1])
    return Frontier(sketch, (0, child, child + 1))


def _upto(tree: TreeSketch, node: int) -> TreeSketch:
    """The chain as it was when `node` was its last."""
    sketch = TreeSketch(tree.tokens[0], tree.root_position)
    for number in range(1, node + 1):
        sketch.add(tree.parents[number], tree.tokens[number])
    return sketch
