"""Draft sessions over several steps: told what was emitted, some rows leaving and others joining."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import Proposal
from specdec.losslessness.exact.toy_models import shown
from specdec.testing.answers import alike, answer_row, answer_words, difference, same_tokens, says_something
from specdec.testing.report import CheckFailed
from specdec.testing.sessions import FRONTIER, Sessions, Text

SIZES = (1, 2, 4, 1, 3)
"""Tokens that a row emits, step after step; another row begins elsewhere."""

NEWS = ((1,), (2,), (5,), (2, 3), (3, 1), (1, 2), (2, 1, 1, 3, 1, 2, 1, 1, 2))
"""Tokens of one step after another, each of which must count."""

SILENT = 2
"""A step in which one row asks nothing."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Compares sessions that have gone through several steps."""

    sessions: Sessions

    @property
    def texts(self) -> Sequence[Text]:
        """Of the rows, at the beginning."""
        return self.sessions.texts

    def learns(self) -> None:
        """Raise CheckFailed for a row that answers as if it had not been told what was emitted, or a part of it."""
        for sizes in NEWS:
            self._every_token_counts(sizes)

    def _every_token_counts(self, sizes: Sequence[int]) -> None:
        """Of the last of several steps. A session that is told another token there must not answer the same.

        Unless a new session does, or what is answered is what a new session answers.
        """
        text, size = self.texts[0], self.sessions.target.facts.vocab_size
        news = [_news(text, step, count) for step, count in enumerate(sizes)]
        longer = (*text, *(token for tokens in news for token in tokens))
        after, fresh = self._told(text, news), self.sessions.ask([longer])[0]
        if alike(after, fresh):
            return
        for place, token in enumerate(news[-1]):
            other = (*news[-1][:place], (token + 1) % size, *news[-1][place + 1 :])
            changed = (*longer[: len(longer) - len(other)], *other)
            untold, afresh = self._told(text, [*news[:-1], other], changed), self.sessions.ask([changed])[0]
            self._differ(after, untold, fresh, afresh, f"token {place + 1} of the {len(other)} that step {len(news)} emitted")
        self._heard(text, news, longer, after, fresh)

    def _heard(self, text: Text, news: Sequence[Text], longer: Text, after: Proposal | None, fresh: Proposal | None) -> None:
        """Raise CheckFailed where the answer is that of a session that was not told the last step at all."""
        try:
            deaf = self._told(text, news[:-1], longer)
        except Exception:  # it may rely on being told
            return
        what = f"what step {len(news)} emitted ({len(news[-1])} tokens)"
        self._differ(after, deaf, fresh, None, what)

    def _differ(
        self,
        after: Proposal | None,
        untold: Proposal | None,
        fresh: Proposal | None,
        afresh: Proposal | None,
        what: str,
    ) -> None:
        if after is None or untold is None or fresh is None:
            return
        for node in range(FRONTIER):
            answer, new = answer_row(after, node), answer_row(fresh, node)
            if not says_something(answer) or same_tokens(answer, new) or not alike(answer, answer_row(untold, node)):
                continue
            if afresh is not None and alike(new, answer_row(afresh, node)):
                continue
            raise CheckFailed(
                f"it answers {answer_words(answer)}, as if it had not been told {what}; a new session for that text answers "
                f"{answer_words(new)}: `observe` must enter the committed tokens, each in the step that reports it "
                f"(after {shown(self.texts[0])})"
            )

    def _told(self, text: Text, news: Sequence[Text], ask: Text | None = None) -> Proposal | None:
        """What a session answers that has been told all of the news. ask: another text to be asked about."""
        session = self.sessions.open([text])
        self.sessions.expand(session, [text])
        for number, tokens in enumerate(news):
            self.sessions.learn(session, [text], [tokens])
            text = (*text, *tokens)
            if number < len(news) - 1:
                self.sessions.expand(session, [text])
        return self.sessions.expand(session, [text if ask is None else ask])[0]

    def same_after_steps(self) -> None:
        """Raise CheckFailed unless three rows that learn tokens of their own, step after step, answer as they do alone."""
        self._steps({}, "`observe` must enter each row's own tokens")

    def same_after_leaving(self) -> None:
        """The same where some leave, at once or later: the second, the first or the last, and another one after it."""
        last = len(self.texts) - 1
        for step, gone in ((0, 1), (0, 0), (0, last), (3, 1), (3, 0)):
            left = [row for row in range(len(self.texts)) if row != gone]
            hint = "`keep` must drop rows by their place and change no other; `observe` reports the rows that are left"
            self._steps({step: left, 4: left[-1:]}, hint)

    def _steps(self, left_at: dict[int, list[int]], hint: str) -> None:
        """left_at: by step, the rows of the beginning that stay."""
        together, rows = self.sessions.open(self.texts), list(range(len(self.texts)))
        self.sessions.expand(together, self.texts)
        texts = list(self.texts)
        for step in range(len(SIZES)):
            if step in left_at:
                together.keep([rows.index(row) for row in left_at[step]])
                texts = [texts[rows.index(row)] for row in left_at[step]]
                rows = left_at[step]
            news = [self._news(row, step) for row in rows]
            self.sessions.learn(together, texts, news)
            texts = [(*text, *tokens) for text, tokens in zip(texts, news, strict=True)]
            silent = [rows.index(row) for row in rows[:1] if step == SILENT]
            answers = self.sessions.expand(together, texts, silent)
            for place, (row, answer) in enumerate(zip(rows, answers, strict=True)):
                if place not in silent:
                    alone = self._follow(row, step, silent_at=SILENT if row == self._silent(left_at) else None)
                    self._compare(answer, alone, f"{self._left(rows)}in step {step + 1}", row, hint)

    def _left(self, rows: Sequence[int]) -> str:
        """Which rows are gone, in words."""
        gone = [str(row) for row in range(len(self.texts)) if row not in rows]
        words = (
            f"row{'s' * (len(gone) > 1)} {' and '.join(gone)} of {len(self.texts)} {'have' if len(gone) > 1 else 'has'} left"
        )
        return f"after {words}, and each other has learned its tokens, " if gone else "after each has learned its tokens, "

    def _silent(self, left_at: dict[int, list[int]]) -> int:
        """The row that asks nothing in step SILENT: the first that is there."""
        there = [rows for step, rows in sorted(left_at.items()) if step <= SILENT]
        return there[-1][0] if there else 0

    def _news(self, row: int, step: int) -> Text:
        return _news(self.texts[row], step, SIZES[(row + step) % len(SIZES)])

    def _follow(self, row: int, steps: int, silent_at: int | None) -> Proposal | None:
        """What a session of its own answers that has learned the same tokens in the same steps."""
        text = self.texts[row]
        single = self.sessions.open([text])
        self.sessions.expand(single, [text])
        answer = None
        for step in range(steps + 1):
            news = self._news(row, step)
            self.sessions.learn(single, [text], [news])
            text = (*text, *news)
            answer = self.sessions.expand(single, [text], (0,) if step == silent_at else ())[0]
        return answer

    def same_after_joining(self) -> None:
        """Of three rows the first leaves, the others learn a token, and two begin: all answer as if they were alone."""
        old, new = list(self.texts[1:]), [self.texts[0], self.texts[1][::-1]]
        together = self.sessions.open(self.texts)
        self.sessions.expand(together, self.texts)
        together.keep(range(1, len(self.texts)))
        order, texts = old, list(old)
        for begin in (new, []):
            news = [(text[0],) for text in order]
            self.sessions.learn(together, texts, news)
            texts = [(*text, *tokens) for text, tokens in zip(texts, news, strict=True)]
            if begin:
                together.join(self.sessions.open(begin))
                order, texts = [*order, *begin], [*texts, *begin]
            for row, (answer, text) in enumerate(zip(self.sessions.expand(together, texts), texts, strict=True)):
                alone = self._token_by_token(order[row], text)
                hint = "`join` must append the other session's rows behind its own, in their order"
                self._compare(answer, alone, "after two rows have joined two others", row, hint)

    def _token_by_token(self, begin: Text, text: Text) -> Proposal | None:
        single: DraftSession = self.sessions.open([begin])
        for end in range(len(begin), len(text)):
            self.sessions.expand(single, [text[:end]])
            self.sessions.learn(single, [text[:end]], [text[end : end + 1]])
        return self.sessions.expand(single, [text])[0]

    def _compare(self, answer: Proposal | None, alone: Proposal | None, when: str, row: int, hint: str) -> None:
        if not alike(alone, answer):
            got, wanted = difference(answer, alone)
            raise CheckFailed(f"{when}, row {row} answers {got}; alone it answers {wanted}: {hint}")


def _news(text: Text, step: int, size: int) -> Text:
    """Tokens of the text, others in every step."""
    return (*(text[(step + place) % len(text)] for place in range(size - 1)), text[-1 - step % len(text)])
