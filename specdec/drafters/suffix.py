"""`suffix`: what followed the longest match of the last tokens, in the sequence itself and in a datastore."""

from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.drafters.vocabulary import check_fingerprint
from specdec.files.paths import DataFile
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import DraftStart
from specdec.interfaces.results import Committed, Scored
from specdec.lookup.datastore import Datastore, read_datastore
from specdec.lookup.predictions import Guess, Predictions
from specdec.lookup.session import LookupSession
from specdec.lookup.suffix_automaton import Place, SuffixAutomaton
from specdec.trees.draft_tree import TreeSketch

CONTEXTS = 3
"""How many ever shorter matches an estimate is made of."""

NOVELTY = 2.0
"""Weight, in occurrences, of 'something else follows' by different token that did follow, over the length of the match.

Measured on 16,000 tokens of a 135M chat model's own greedy answers: of the tokens that are estimated at 10, 20, 30, 40, 50, 60,
70, 80, 90 %, 10, 16, 26, 33, 52, 56, 66, 72, 82 % follow.
"""

STORE_TRUST = 0.25
"""What an occurrence in the datastore counts beside one in the sequence itself, where matches are equally long."""


class SuffixOptions(PartOptions):
    """Options of `suffix`."""

    longest: Annotated[int, Field(ge=1, le=64, description="longest suffix that is matched, in tokens")] = 24
    candidates: Annotated[int, Field(ge=1, le=64, description="most different next tokens for a node")] = 4
    min_confidence: Annotated[
        float, Field(ge=0, le=1, description="a token is offered if its path is as likely as this, by the estimate")
    ] = 0.1
    datastore: Annotated[
        DataFile | None, Field(description="a file that `specdec datastore build` made of texts; unset: none")
    ] = None


class SuffixDrafter(Drafter[SuffixOptions]):
    """Proposes what followed the longest earlier occurrence of a node's context, the shorter ones filling in.

    An estimate mixes the three longest suffixes that were followed by different numbers of tokens: the counts after each, and,
    with weight NOVELTY x different followers / length, the estimate of the next shorter one. So a tree has several branches
    where the text went on in several ways, and a long match counts more than a short one.
    *Source: SuffixDecoding, arXiv 2411.04975; REST, arXiv 2311.08252 (datastore); the mixing is that of PPM compressors.*
    """

    name: ClassVar[str] = "suffix"
    Options: ClassVar[type[PartOptions]] = SuffixOptions

    def __init__(self, options: SuffixOptions, store: Datastore | None, vocab_size: int | None) -> None:
        self._options = options
        self._store = store
        self._vocab_size = vocab_size

    @classmethod
    def declares(cls, options: SuffixOptions) -> DrafterDeclaration:
        """Candidates with scores."""
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options: SuffixOptions, tools: BuildTools) -> "SuffixDrafter":
        """Read the datastore. Raises TargetMismatch for one of another vocabulary."""
        vocab_size = None if tools.target is None else tools.target.facts.vocab_size
        if options.datastore is None:
            return cls(options, None, vocab_size)
        store = read_datastore(options.datastore)
        check_fingerprint(store.vocabulary, tools.target, what=f"the datastore {options.datastore}")
        return cls(options, store, vocab_size)

    def open(self, starts: Sequence[DraftStart]) -> DraftSession:
        """A session that has read the prompts."""
        texts = [(*start.prompt, start.first_token) for start in starts]
        return LookupSession([_Row(self._options, self._store, self._vocab_size, text) for text in texts])


class _Row:
    """One sequence. places: by node of this step's tree, the longest suffix of its context that occurs in the sequence."""

    def __init__(self, options: SuffixOptions, store: Datastore | None, vocab_size: int | None, tokens: Sequence[int]) -> None:
        self._options = options
        self._store = store
        self._vocab_size = vocab_size
        self._text = SuffixAutomaton(options.longest)
        self._text.extend(tokens)
        self._tail = list(tokens[-options.longest :])
        self._places: dict[int, Place] = {0: self._text.suffix}
        self.predictions = Predictions(least=options.min_confidence)

    def guess(self, tree: TreeSketch, node: int) -> list[Guess]:
        """The likeliest tokens after `node`."""
        found = [(place.length, self._text.followers(place)) for place in self._contexts(self._place(tree, node))]
        counts = [(length, [(token, float(count)) for token, count, _ in rows]) for length, rows in found]
        latest = {token: end for _, rows in found for token, _, end in rows}
        if self._store is not None:
            context = [*self._tail, *tree.path(node)][-self._options.longest :]
            counts = merged(counts, self._store.matches(context, CONTEXTS))
        estimates = mixed(counts)
        if self._store is not None and self._vocab_size is not None:
            estimates = {token: estimate for token, estimate in estimates.items() if token < self._vocab_size}
        best = nlargest(self._options.candidates, estimates, key=lambda token: (estimates[token], latest.get(token, 0)))
        return [(token, estimates[token]) for token in best]

    def _place(self, tree: TreeSketch, node: int) -> Place:
        if node not in self._places:
            self._places[node] = self._text.step(self._place(tree, tree.parents[node]), tree.tokens[node])
        return self._places[node]

    def _contexts(self, place: Place) -> Iterable[Place]:
        def downwards(place: Place) -> Iterable[Place]:
            place = self._text.followed(place)
            while place.length:
                yield place
                place = self._text.shorter(place)

        return islice(downwards(place), CONTEXTS)

    def observe(self, news: Committed, scored: Scored) -> None:
        """Append what was emitted."""
        tokens = news.tokens
        self.predictions.observe(tokens)
        self._text.extend(tokens)
        self._tail = [*self._tail, *tokens][-self._options.longest :]
        self._places = {0: self._text.suffix}


Counts = list[tuple[int, list[tuple[int, float]]]]
"""By context, the longest first: its length, and what followed how often."""


def merged(own: Counts, stored: Counts) -> Counts:
    """The contexts of both, the longest first; what is stored counts less, and counts of one length are added up."""
    by_length: dict[int, dict[int, float]] = {}
    for trust, counts in ((1.0, own), (STORE_TRUST, stored)):
        for length, rows in counts:
            entry = by_length.setdefault(length, {})
            for token, count in rows:
                entry[token] = entry.get(token, 0.0) + trust * count
    lengths = sorted(by_length, reverse=True)[: CONTEXTS + 1]
    return [(length, list(by_length[length].items())) for length in lengths]


def mixed(counts: Counts) -> dict[int, float]:
    """Token to estimated probability; what is missing to 1 is for tokens that never followed."""
    estimates: dict[int, float] = {}
    for length, rows in reversed(counts):
        unseen = NOVELTY * len(rows) / length
        total = sum(count for _, count in rows) + unseen
        estimates = {token: estimate * unseen / total for token, estimate in estimates.items()}
        for token, count in rows:
            estimates[token] = estimates.get(token, 0.0) + count / total
    return estimates
