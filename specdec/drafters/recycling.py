"""`recycling`: what the target itself held likely the last time that it stood behind the same tokens."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

from pydantic import Field

from specdec.drafters.vocabulary import check_fingerprint
from specdec.files.paths import DataFile
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import DraftStart
from specdec.interfaces.results import Committed, Scored
from specdec.lookup.predictions import Guess, Predictions
from specdec.lookup.session import LookupSession
from specdec.lookup.successors import SuccessorTables, likeliest, read_successors
from specdec.trees.draft_tree import TreeSketch

TRUST: Final = {1: 0.6, 2: 0.9}
"""What a probability of then is worth now, by tokens of context that agree.

Measured on 2,900 tokens of a 135M chat model's own greedy answers: of the likeliest tokens, held for 0.9 or more, 63 % follow
where one token agrees, and 89 % where two do.
"""


class RecyclingOptions(PartOptions):
    """Options of `recycling`."""

    context: Annotated[
        int, Field(ge=1, le=2, description="tokens by which the target's choices are found again; 1 is the published method")
    ] = 2
    candidates: Annotated[int, Field(ge=1, le=64, description="next tokens that are remembered for a context")] = 8
    min_confidence: Annotated[
        float, Field(ge=0, le=1, description="a token is offered if its path is as likely as this, by the estimate")
    ] = 0.05
    start: Annotated[
        DataFile | None, Field(description="a file that `specdec datastore successors` made; unset: nothing is known at first")
    ] = None


class RecyclingDrafter(Drafter[RecyclingOptions]):
    """Proposes the likeliest next tokens that the target gave, at any node, the last time it stood behind the same tokens.

    Every node that was scored is remembered, rejected ones too: they have been paid for. Two tokens of context are tried before
    one (the publication keeps one). What is learned belongs to the sequence, so that drafts do not depend on batch mates; the
    tables of a file are only read.
    *Source: token recycling, arXiv 2408.08696; there a node's children are a fixed number, here as many as are likely.*
    """

    name: ClassVar[str] = "recycling"
    Options: ClassVar[type[PartOptions]] = RecyclingOptions

    def __init__(self, options: RecyclingOptions, start: SuccessorTables | None, vocab_size: int | None) -> None:
        self._options = options
        self._start = start
        self._vocab_size = vocab_size

    @classmethod
    def declares(cls, options: RecyclingOptions) -> DrafterDeclaration:
        """Candidates with scores."""
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options: RecyclingOptions, tools: BuildTools) -> "RecyclingDrafter":
        """Read the tables to start from. Raises TargetMismatch for those of another vocabulary."""
        vocab_size = None if tools.target is None else tools.target.facts.vocab_size
        if options.start is None:
            return cls(options, None, vocab_size)
        tables, vocabulary = read_successors(options.start)
        check_fingerprint(vocabulary, tools.target, what=f"the successors file {options.start}")
        return cls(options, tables, vocab_size)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session that knows the prompts' last tokens, and nothing yet of what the target holds likely."""
        tails = [(*start.prompt[-1:], start.first_token) for start in starts]
        return LookupSession([_Row(self._options, self._start, self._vocab_size, tail) for tail in tails])


class _Row:
    """One sequence. tail: its last two tokens, the root last."""

    def __init__(
        self, options: RecyclingOptions, start: SuccessorTables | None, vocab_size: int | None, tail: tuple[int, ...]
    ) -> None:
        self._count = options.candidates
        self._vocab_size = vocab_size
        self._tables = SuccessorTables(options.context, start)
        self._tail = tail
        self.predictions = Predictions(least=options.min_confidence)

    def guess(self, tree: TreeSketch, node: int) -> list[Guess]:
        """What is remembered for the tokens that end at `node`."""
        context = self._tail if node == 0 else (*self._tail, *tree.path(node)[-2:])
        order, found = self._tables.find(context)
        size = self._vocab_size
        known = [(token, probability) for token, probability in found if size is None or token < size]
        return [(token, TRUST[order] * probability) for token, probability in known[: self._count]]

    def observe(self, news: Committed, scored: Scored) -> None:
        """Remember the likeliest tokens at every node that was scored, and continue from what was emitted."""
        tree = news.tree
        rows = likeliest(scored.logits, self._count)
        for node, successors in enumerate(rows):
            path = [] if tree is None else tree.path_tokens(node)[-2:]
            self._tables.enter((*self._tail, *path), successors)
        self.predictions.observe(news.tokens)
        self._tail = (*self._tail, *news.tokens)[-2:]
