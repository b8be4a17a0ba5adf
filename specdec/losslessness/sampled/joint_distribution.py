"""The joint distribution of three tokens after fixed real prefixes, whose p and q rows are computed once, level by level."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.decoder import Decoder
from specdec.interfaces.parts import DraftSession
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.losslessness.reference_model import Reference
from specdec.losslessness.sampled.cached_rows import row_sampling, table_decoder
from specdec.losslessness.sampled.long_runs import RealRow
from specdec.losslessness.sampled.recording_drafter import Context, Notes
from specdec.losslessness.sampled.statistics import ChiSquare, Floats, chi_square
from specdec.sampling.distribution import truncate
from specdec.sampling.keyed_noise import mix
from specdec.sampling.params import SamplingParams
from specdec.trees.draft_tree import TreeSketch

WIDTH = 4
"""Tokens that are kept after each context: the likeliest of p and q together."""

LENGTH = 3
"""Tokens of the joint distribution."""

RUN_TOKENS = 8
"""Of a request: beyond the joint distribution, so that no draft is cut short within it."""

BATCH = 64
Local = tuple[int, ...]
"""Tokens below a fixed prefix, by their rank at each context."""


@dataclass(slots=True)
class JointRuns:
    """One fixed prefix. counts, distribution: [WIDTH ** LENGTH] what was emitted, and what should have been."""

    decoder: Decoder
    distribution: Floats
    seed: int
    counts: Floats = field(init=False)
    _requests: int = 0

    def __post_init__(self) -> None:
        self.counts = np.zeros_like(self.distribution)

    def run(self, batch: int = BATCH) -> int:
        """One more batch from the same prefix; the number of tokens judged."""
        numbers = range(self._requests, self._requests + batch)
        self._requests += batch
        seeds = [mix(self.seed, 31, n) >> 1 for n in numbers]
        for answer in self.decoder.generate([[0]] * batch, seed=seeds, max_new_tokens=RUN_TOKENS):
            cell = 0
            for token in answer.tokens[1 : 1 + LENGTH]:
                cell = cell * WIDTH + token
            self.counts[cell] += 1
        return batch * LENGTH

    @property
    def chi(self) -> ChiSquare:
        """The joint distribution against the product of the memoised rows."""
        return chi_square(self.counts, self.distribution)


def joint_runs(resolved: ResolvedSpec, decoder: Decoder, reference: Reference, prefix: Context, seed: int) -> JointRuns:
    """Compute the rows of all contexts of up to LENGTH - 1 tokens below `prefix`; the first token of a run is forced."""
    rows = real_contexts(decoder, reference, prefix)
    sampling = row_sampling(resolved.spec.sampling)
    forced = np.eye(WIDTH)[0]
    keys = {"": RealRow(forced, forced), "*": rows[()]}
    keys |= {",".join(map(str, (0, *local))): row for local, row in rows.items()}
    distribution = _product(rows, sampling)
    return JointRuns(table_decoder(resolved, WIDTH, keys, sampling, start=1), distribution, seed)


def real_contexts(decoder: Decoder, reference: Reference, prefix: Context) -> dict[Local, RealRow]:
    """By context below `prefix`, p from plain forwards and q from the strategy's own drafter."""
    questions = _Questions(decoder, prefix)
    found: dict[Local, RealRow] = {}
    level: dict[Local, Context] = {(): ()}
    vocab_size = decoder.target.facts.vocab_size
    for _ in range(LENGTH):
        texts = [((*prefix, *real, 0), len(prefix) + len(real)) for real in level.values()]
        distributions = [row[0].double().softmax(-1) for row in reference.rows(texts)]
        offers = questions.ask(list(level.values()), vocab_size)
        deeper: dict[Local, Context] = {}
        for (local, real), p, offered in zip(level.items(), distributions, offers, strict=True):
            q = p.square() / p.square().sum() if offered is None else offered
            ids = (p + q).topk(WIDTH).indices
            found[local] = RealRow((p[ids] / p[ids].sum()).numpy(), (q[ids] / q[ids].sum()).numpy())
            deeper |= {(*local, rank): (*real, token) for rank, token in enumerate(ids.tolist())}
        level = deeper
    return found


class _Questions:
    """A drafter's session below one prefix, asked level by level as a builder would ask it."""

    def __init__(self, decoder: Decoder, prefix: Context) -> None:
        self._sketch = TreeSketch(prefix[-1], len(prefix) - 1)
        self._nodes: dict[Context, int] = {(): 0}
        self._session: DraftSession | None = None
        if decoder.drafter.declaration.drafts and len(prefix) > 1:
            scored = decoder.target.prefill([list(prefix[:-1])], decoder.drafter.declaration.features).scored[0]
            self._session = decoder.drafter.open([DraftStart(prefix[:-1], prefix[-1], scored.hidden)])

    def ask(self, contexts: Sequence[Context], vocab_size: int) -> list["torch.Tensor | None"]:
        """[vocab] q by context, None where nothing is offered. The contexts are one level deeper than those before."""
        if self._session is None:
            return [None] * len(contexts)
        for context in contexts:
            if context:
                self._nodes[context] = self._sketch.add(self._nodes[context[:-1]], context[-1])
        nodes = tuple(self._nodes[context] for context in contexts)
        answer = self._session.expand([Frontier(self._sketch, nodes)])[0]
        if answer is None:
            return [None] * len(contexts)
        notes = Notes(offers={context: (answer, row) for row, context in enumerate(contexts)})
        logs = [notes.draft_logits(context, vocab_size) for context in contexts]
        return [None if log is None else log.exp() for log in logs]


def _product(rows: dict[Local, RealRow], sampling: SamplingParams) -> Floats:
    """[WIDTH ** LENGTH] the product distribution of the rows after temperature and truncation."""
    warped = {local: truncate(torch.tensor(row.p).log(), sampling).dense(WIDTH).numpy() for local, row in rows.items()}
    cells = itertools.product(range(WIDTH), repeat=LENGTH)
    return np.array([np.prod([warped[cell[:place]][cell[place]] for place in range(LENGTH)]) for cell in cells])
