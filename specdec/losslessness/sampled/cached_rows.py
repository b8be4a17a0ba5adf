"""The strategy's own builder, verifier and loop on memoised p and q rows of real prefixes: many seeds, no forwards."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import built
from specdec.decoding.callbacks import StepInfo, draft_levels
from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import requests_of
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import BuildTools, build_part
from specdec.losslessness.exact.guards import with_own_drafts
from specdec.losslessness.exact.own_shape import wanted_places
from specdec.losslessness.exact.places import Place
from specdec.losslessness.sampled.evidence import Bets, Evidence, bets
from specdec.losslessness.sampled.long_runs import RealRow
from specdec.losslessness.sampled.statistics import Floats
from specdec.sampling.distribution import truncate
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions

TEMPERS = (1.0, 0.5, 2.0, -1.0)
"""Powers of q, row by row: as the drafter has it, flatter, sharper, and (-1) the same numbers upside down, the likeliest last.

A rule must hold for every q, and a drafter that is always right would show nothing.
"""

RUN_TOKENS = 16
"""Of one request at least, and two whole drafts; the first is drawn by the prefill, without a draft, and is not counted."""

MOST_TOKENS = 64

BATCH = 64
MOST_ROWS, LEAST_ENDINGS = 1024, 512
"""Real rows of a patchwork, and the endings of a text that it tells apart."""


@dataclass(slots=True)
class RowRuns:
    """A model that is a patchwork of real rows: which row comes next depends on the last few tokens.

    distributions: [rows, tokens] after the strategy's temperature and truncation. index: [tokens ** depth] the row after each
    ending of a text. starts: for each row, an ending that leads to it. tried: how often a draft was tried at each place of the
    strategy's own trees, drawn as for one sequence.
    """

    resolved: ResolvedSpec
    rows: Sequence[RealRow]
    seed: int
    evidence: Evidence = field(default_factory=lambda: Evidence("memoised rows"))
    tried: Counter[Place] = field(default_factory=Counter)
    _decoder: Decoder = field(init=False)
    _index: np.ndarray = field(init=False)
    _distributions: Floats = field(init=False)
    _bets: list[Bets] = field(init=False)
    _starts: list[tuple[int, ...]] = field(init=False)
    _depth: int = field(init=False)
    _run_tokens: int = field(init=False)
    _requests: int = 0
    _batches: int = 0

    def __post_init__(self) -> None:
        rows = _tempered(self.rows[:MOST_ROWS])
        vocab = len(rows[0].p)
        self._depth = next(depth for depth in range(1, 64) if vocab**depth >= LEAST_ENDINGS or vocab == 1)
        endings = list(itertools.product(range(vocab), repeat=self._depth))
        self._index = np.array([mix(self.seed, 21, *ending) % len(rows) for ending in endings])
        sampling = row_sampling(self.resolved.spec.sampling)
        self._distributions = np.stack([truncate(torch.tensor(row.p).log(), sampling).dense(vocab).numpy() for row in rows])
        offers = [truncate(torch.tensor(row.q).log(), sampling.draft_truncation).dense(vocab).numpy() for row in rows]
        self._bets = [_dense_bets(p, q) for p, q in zip(self._distributions, offers, strict=True)]
        keys = {",".join(map(str, ("*", *ending))): rows[row] for ending, row in zip(endings, self._index, strict=True)}
        self._decoder = with_own_drafts(table_decoder(self.resolved, vocab, keys, sampling), alone=True)
        self._run_tokens = max(RUN_TOKENS, min(MOST_TOKENS, 2 * (self.resolved.parts[Kind.TREE].declares.max_depth or 0)))
        self._starts = [endings[place] for place in np.unique(self._index, return_index=True)[1]]
        self.evidence.distributions = self._distributions
        self.evidence.counts = (np.zeros_like(self._distributions), np.zeros_like(self._distributions))

    @property
    def num_rows(self) -> int:
        """Real rows that the patchwork reaches."""
        return len(self._starts)

    @property
    def places(self) -> frozenset[Place]:
        """Those that the strategy's trees may have, as far as they are declared or were met."""
        declared = wanted_places(self.resolved.parts[Kind.TREE].declares)
        return declared | frozenset(self.tried) if self.tried else frozenset()

    def run(self, batch: int = BATCH) -> int:
        """One more batch of requests; the number of tokens judged. Seeds never come twice."""
        numbers = range(self._requests, self._requests + batch)
        self._requests += batch
        self._batches += 1
        requests = requests_of(
            [self._starts[n % len(self._starts)] for n in numbers],
            seed=[mix(self.seed, 22, n) >> 1 for n in numbers],
            max_new_tokens=self._run_tokens,
        )
        run = self._decoder.start(requests, step_callback=self._enter)
        while run.sequences:
            self._decoder.step(run)
        texts = np.array([one.tokens for one in sorted(run.ended, key=lambda one: one.number)])
        tokens = texts[:, self._depth + 1 :]
        places = np.zeros_like(tokens)
        for back in range(self._depth, 0, -1):
            places = places * self._distributions.shape[1] + texts[:, self._depth + 1 - back : texts.shape[1] - back]
        contexts = self._index[places]
        self._count(contexts, tokens, half=self._batches % 2)
        return int(tokens.size)

    def _enter(self, step: StepInfo) -> None:
        """Count the places at which the step tried a draft."""
        for level in draft_levels(step):
            tried = level.num_children if level.rank is None else level.rank + 1
            depth = step.tree.depths[level.node] + 1
            self.tried.update((depth, rank) for rank in range(1, tried + 1))

    def _count(self, contexts: np.ndarray, tokens: np.ndarray, *, half: int) -> None:
        """Contexts and tokens: [requests, places]. The halves take turns, so that both see every row."""
        rows, drawn = contexts.ravel(), tokens.ravel()
        if self.evidence.counts is not None:
            np.add.at(self.evidence.counts[half], (rows, drawn), 1)
        possible = self._distributions[rows, drawn] > 0
        self.evidence.impossible += int((~possible).sum())
        rows, drawn = rows[possible], drawn[possible]
        favoured = np.stack([bet.favoured for bet in self._bets])
        masses = np.array([bet.mass for bet in self._bets])
        ratios = np.stack([bet.ratios for bet in self._bets])
        key = mix(self.seed, 23, self._requests)
        fresh = uniforms(key, torch.arange(len(rows))).numpy()
        values = self._below()[0][rows, drawn] + fresh * self._below()[1][rows, drawn]
        self.evidence.add(favoured[rows, drawn].astype(float), masses[rows], values, ratios[rows, drawn])

    def _below(self) -> tuple[Floats, Floats]:
        """[rows, tokens] the mass that comes before a token in the order of its row, and that of its ties."""
        order = np.stack([bet.order for bet in self._bets])
        before = (order[:, None, :] < order[:, :, None]) * self._distributions[:, None, :]
        ties = (order[:, None, :] == order[:, :, None]) * self._distributions[:, None, :]
        return before.sum(2), ties.sum(2)


def row_sampling(own: SamplingParams) -> SamplingParams:
    """The strategy's temperature and truncation, above 0; what depends on the path or on real ids is left to the long runs."""
    return SamplingParams(
        temperature=own.temperature or 1.0,
        top_k=own.top_k,
        top_p=own.top_p,
        min_p=own.min_p,
        draft=own.draft,
        seed=own.seed,
    )


def table_decoder(
    resolved: ResolvedSpec, vocab: int, rows: dict[str, RealRow], sampling: SamplingParams, *, start: int = 0
) -> Decoder:
    """The spec's builder and verifier between a table of p and a table of q; a drafter that drafts nothing stays itself."""
    target = TabularTarget(
        TabularTargetOptions(vocab=vocab, start=start, rows={key: tuple(row.p) for key, row in rows.items()})
    )
    tools = BuildTools(target=target, find_tree=resolved.find_tree, sampling_seed=sampling.seed)
    drafter, builder, verifier = (resolved.parts[kind] for kind in (Kind.DRAFTER, Kind.TREE, Kind.VERIFIER))
    options = TabularDrafterOptions(vocab=vocab, start=start, rows={key: tuple(row.q) for key, row in rows.items()})
    return Decoder(
        target,
        build_part(TabularDrafter, options, tools) if drafter.declares.drafts else built(drafter, tools),
        built(builder, tools),
        built(verifier, tools),
        sampling=sampling,
        name=resolved.spec.name,
    )


def _tempered(rows: Sequence[RealRow]) -> list[RealRow]:
    tempered = []
    for number, row in enumerate(rows):
        power = TEMPERS[number % len(TEMPERS)]
        q = row.q**power if power > 0 else _upside_down(row.q)
        tempered.append(RealRow(row.p, q / q.sum()))
    return tempered


def _upside_down(q: Floats) -> Floats:
    """The same numbers, given to the tokens in the opposite order."""
    order = np.argsort(q, kind="stable")
    turned = np.empty_like(q)
    turned[order] = q[order[::-1]]
    return turned


def _dense_bets(p: Floats, q: Floats) -> Bets:
    """Bets over the whole vocabulary; tokens outside p's support are never looked at."""
    support = p > 0
    bet = bets(p[support], q[support])
    favoured, order, ratios = np.zeros(len(p), dtype=bool), np.zeros(len(p)), np.ones((len(p), bet.ratios.shape[1]))
    favoured[support], order[support], ratios[support] = bet.favoured, bet.order, bet.ratios
    return Bets(favoured, bet.mass, order, ratios)
