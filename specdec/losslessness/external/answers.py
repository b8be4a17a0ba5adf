"""Answers of a callable, above temperature 0, judged token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.losslessness.external.callables import Answered, Answering, Asked, ask, judged_part
from specdec.losslessness.external.instrumented import Steps
from specdec.losslessness.external.step_evidence import StepEvidence
from specdec.losslessness.reference_model import Reference
from specdec.losslessness.sampled.evidence import Evidence, Leaning
from specdec.losslessness.sampled.long_runs import Judge
from specdec.losslessness.sampled.recording_drafter import Context
from specdec.losslessness.sampled.statistics import FALSE_ALARM, Floats
from specdec.sampling.distribution import TokenDist
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.sampling.logits_warper import LogitsWarper

CALLS = 16
"""Between two looks at the evidence."""

MEMOISED = 1 << 22
"""Logits that are kept, so that small models answer each context once."""

MOST_CONTEXTS = 4096

MOST_TESTS = 32
"""More than are made: what an e-process has to stand up to before a run is cut short."""

CELLS = 256
"""Tokens of a context that are counted one by one: the likeliest; all others are counted together."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Where the tokens of a context are counted. places: by token; all others behind them. distribution: [places + 1]."""

    places: dict[int, int]
    distribution: Floats


@dataclass(slots=True)
class Answers:
    """Answers of one function. seen: by context, tokens counted in turns.

    steps: what became of drafts, where it says so. logprob_gaps: between the engine's and p's, by token.
    """

    answering: Answering
    decoder: Decoder
    reference: Reference
    seed: int
    prompts: list[list[int]]
    size: int
    evidence: Evidence = field(default_factory=lambda: Evidence("answers", Leaning.LIKELIER, rest=True))
    calls: int = 0
    edges: int = 0
    logprob_gaps: list[float] = field(default_factory=list)
    steps: StepEvidence | None = None
    _memo: dict[Context, Tensor] = field(default_factory=dict)
    _seen: dict[Context, list[list[int]]] = field(default_factory=dict)
    _cells: dict[Context, _Cells] = field(default_factory=dict)

    def run(self) -> int:
        """CALLS more answers, seeds of which none comes twice; the number of tokens judged."""
        facts = self.decoder.target.facts
        answers, texts = list[tuple[Answered, Asked]](), list[tuple[Context, int]]()
        for _ in range(CALLS):
            prompt = self.prompts[self.calls % len(self.prompts)]
            seed = mix(self.seed, 71, self.calls) >> 33
            self.calls += 1
            asked = ask(self.answering, prompt, self.size, seed, facts.vocab_size)
            answers.append((judged_part(asked.tokens, self.size, facts.stop_ids), asked))
            texts.append(((*prompt, *answers[-1][0].tokens), len(prompt)))
        distributions = self._distributions(texts)
        for number, ((answered, asked), (tokens, first), rows) in enumerate(zip(answers, texts, distributions, strict=True)):
            found = self._judge(tokens, first, rows, self.calls + number, stop_left_out=answered.stop_left_out)
            self._compare_logprobs(asked, rows)
            if asked.steps is not None:
                self._see_steps(asked.steps, tokens[first : len(tokens) - answered.stop_left_out], found, self.calls + number)
        return sum(len(tokens) - first for tokens, first in texts)

    def _distributions(self, texts: Sequence[tuple[Context, int]]) -> list[list[Tensor]]:
        """[vocab] by text and token; each context is computed once where the model is small enough to keep them."""
        missing = [
            (tokens, first)
            for tokens, first in texts
            if any(tokens[:end] not in self._memo for end in range(first, len(tokens)))
        ]
        fresh: dict[Context, Tensor] = {}
        for (tokens, first), rows in zip(missing, self.reference.rows(missing) if missing else [], strict=True):
            fresh |= {tokens[: first + place]: row for place, row in enumerate(rows)}
        found = [
            [
                self._memo[tokens[:end]] if tokens[:end] in self._memo else fresh[tokens[:end]]
                for end in range(first, len(tokens))
            ]
            for tokens, first in texts
        ]
        if (len(self._memo) + len(fresh)) * self.decoder.target.facts.vocab_size <= MEMOISED:
            self._memo |= fresh
        return found

    def _judge(self, tokens: Context, first: int, rows: list[Tensor], number: int, *, stop_left_out: bool) -> list[TokenDist]:
        """Every token against p; p before each."""
        judge = Judge(
            LogitsWarper(self.decoder.sampling, prompt_length=first, stop_ids=frozenset()), mix(self.seed, 72, number)
        )
        if stop_left_out:
            stop = self._drawn_stop(judge.warper.row(rows[-1], tokens[:-1]), mix(self.seed, 74, number))
            tokens = (*tokens[:-1], stop)
        found = []
        for row, end in zip(rows, range(first, len(tokens)), strict=True):
            distribution = judge.see(row, tokens[:end], tokens[end], None)
            if end - first < 3:
                self._count(tokens[:end], tokens[end], distribution.dense(row.shape[-1]))
            found.append(distribution)
        judge.hand_in(self.evidence)
        self.edges += judge.edges
        return found

    def _compare_logprobs(self, asked: Asked, rows: list[Tensor]) -> None:
        for token, said, row in zip(asked.tokens, asked.logprobs or (), rows, strict=False):
            self.logprob_gaps.append(abs(said - float(row.double().log_softmax(-1)[token])))

    def _see_steps(self, steps: Steps, tokens: Context, distributions: list[TokenDist], number: int) -> None:
        if self.steps is None:
            self.steps = StepEvidence(self.decoder.target.facts.vocab_size)
        self.steps.see(steps, tokens, distributions, mix(self.seed, 75, number))

    @property
    def parts(self) -> list[Evidence]:
        """All evidence so far."""
        return [self.evidence, *([] if self.steps is None else self.steps.parts)]

    @property
    def is_decided(self) -> bool:
        """Whether bets on tokens, or a token that cannot be, refute the callable already."""
        return any(part.impossible or part.wealth.p_value < FALSE_ALARM / MOST_TESTS for part in self.parts)

    def _drawn_stop(self, distribution: TokenDist, key: int) -> int:
        """Which stop token an answer ended with that does not say it, drawn as the target would, given that it is one."""
        stops = sorted(self.decoder.target.facts.stop_ids)
        shares = distribution.dense(self.decoder.target.facts.vocab_size)[stops].cumsum(0)
        uniform = uniforms(key, torch.tensor([0])).to(shares.dtype) * shares[-1]
        return stops[min(int(torch.searchsorted(shares, uniform, right=True)), len(stops) - 1)]

    def _count(self, context: Context, token: int, distribution: Tensor) -> None:
        """Tokens by context, for chi-square; on a large vocabulary the likeliest and all others together."""
        if context not in self._seen and len(self._seen) >= MOST_CONTEXTS:
            return
        if context not in self._cells:
            self._cells[context] = _cells(distribution)
        cells = self._cells[context]
        halves = self._seen.setdefault(context, [[], []])
        halves[sum(map(len, halves)) % 2].append(cells.places.get(token, len(cells.places)))

    def close(self) -> None:
        """Hand the counts to the evidence."""
        often = [context for context, halves in self._seen.items() if len(halves[0]) >= 10]
        if not often:
            return
        width = len(self._cells[often[0]].distribution)
        distributions = np.zeros((len(often), width))
        counts = (np.zeros_like(distributions), np.zeros_like(distributions))
        for number, context in enumerate(often):
            distributions[number] = self._cells[context].distribution
            for half in (0, 1):
                counts[half][number] = np.bincount(self._seen[context][half], minlength=width)
        self.evidence.distributions, self.evidence.counts = distributions / distributions.sum(1, keepdims=True), counts


def _cells(distribution: Tensor) -> _Cells:
    best = distribution.topk(min(CELLS, len(distribution)))
    rest = max(0.0, 1 - float(best.values.sum())) if len(distribution) > CELLS else 0.0
    return _Cells({token: place for place, token in enumerate(best.indices.tolist())}, np.append(best.values.numpy(), rest))
