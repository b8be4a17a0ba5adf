"""The distribution of a decoder of which nothing is known but its answers, above temperature 0."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.losslessness.external.callables import Answered, Answering, ask, judged_part
from specdec.losslessness.external.trial import Trial
from specdec.losslessness.levels import Level, LevelResult
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.reference_model import Reference
from specdec.losslessness.sampled.evidence import Evidence, Leaning, decide
from specdec.losslessness.sampled.long_runs import Judge
from specdec.losslessness.sampled.recording_drafter import Context
from specdec.losslessness.sampled.statistics import FALSE_ALARM, Floats
from specdec.losslessness.sampled.verdict import curves, statements, tests, verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.sampling.logits_warper import LogitsWarper

ANSWER_TOKENS = 16
CALLS = 16
"""Between two looks at the evidence."""

PROMPTS = 4
"""So few, that the same contexts come again and their tokens can be counted."""

MEMOISED = 1 << 22
"""Logits that are kept, so that small models answer each context once."""

MOST_CONTEXTS = 4096

CELLS = 256
"""Tokens of a context that are counted one by one: the likeliest; all others are counted together."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Where the tokens of a context are counted. places: by token; all others behind them. distribution: [places + 1]."""

    places: dict[int, int]
    distribution: Floats


@dataclass(slots=True)
class _Answers:
    """Answers of one function, judged token by token. seen: by context, tokens counted in turns; stops: end a text."""

    answering: Answering
    decoder: Decoder
    reference: Reference
    seed: int
    prompts: list[list[int]]
    size: int
    evidence: Evidence = field(default_factory=lambda: Evidence("answers", Leaning.LIKELIER, rest=True))
    calls: int = 0
    edges: int = 0
    _memo: dict[Context, Tensor] = field(default_factory=dict)
    _seen: dict[Context, list[list[int]]] = field(default_factory=dict)
    _cells: dict[Context, _Cells] = field(default_factory=dict)

    def run(self) -> int:
        """CALLS more answers, seeds of which none comes twice; the number of tokens judged."""
        facts = self.decoder.target.facts
        answers, texts = list[Answered](), list[tuple[Context, int]]()
        for _ in range(CALLS):
            prompt = self.prompts[self.calls % len(self.prompts)]
            seed = mix(self.seed, 71, self.calls) >> 33
            self.calls += 1
            answer = ask(self.answering, prompt, self.size, seed, facts.vocab_size)
            answers.append(judged_part(answer, self.size, facts.stop_ids))
            texts.append(((*prompt, *answers[-1].tokens), len(prompt)))
        distributions = self._distributions(texts)
        for number, (answered, (tokens, first), rows) in enumerate(zip(answers, texts, distributions, strict=True)):
            self._judge(tokens, first, rows, self.calls + number, stop_left_out=answered.stop_left_out)
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

    def _judge(self, tokens: Context, first: int, rows: list[Tensor], number: int, *, stop_left_out: bool) -> None:
        judge = Judge(
            LogitsWarper(self.decoder.sampling, prompt_length=first, stop_ids=frozenset()), mix(self.seed, 72, number)
        )
        if stop_left_out:
            stop = self._drawn_stop(judge.warper.row(rows[-1], tokens[:-1]), mix(self.seed, 74, number))
            tokens = (*tokens[:-1], stop)
        for row, end in zip(rows, range(first, len(tokens)), strict=True):
            distribution = judge.see(row, tokens[:end], tokens[end], None)
            if end - first < 3:
                self._count(tokens[:end], tokens[end], distribution.dense(row.shape[-1]))
        judge.hand_in(self.evidence)
        self.edges += judge.edges

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


def judge_distribution(trial: Trial) -> LevelResult:
    """The sampled level. Raises PluginError."""
    decoder = trial.decoder
    prompts = prompts_for(decoder.target, PROMPTS)
    size = room(decoder.target, prompts, ANSWER_TOKENS)
    proof = _Answers(trial.answering, decoder, trial.reference, trial.seed, prompts, size)
    while size > 0 and not (proof.calls and trial.is_over):
        proof.run()
        trial.say(f"{proof.calls} answers, {proof.evidence.tokens} tokens")
        if proof.evidence.impossible or proof.evidence.wealth.p_value < FALSE_ALARM / 10:
            break
    proof.close()
    decision = decide([proof.evidence])
    found = {"answers": proof.evidence.distances(len(decision.tests))}
    outcome, words = verdict(decision, found, claims=True, leaning=Leaning.LIKELIER)
    lines = (
        ("p comes from", trial.reference.words),
        ("answers", f"{proof.calls} calls, {proof.evidence.tokens:,} tokens after {len(prompts)} prompts"),
        *statements(decision, found),
    )
    facts: dict[str, Any] = {
        "false_alarm_rate": FALSE_ALARM,
        "smallest_adjusted_p": decision.smallest,
        "tests": tests(decision),
        "total_variation": found,
        "calls": proof.calls,
        "tokens": proof.evidence.tokens,
        "impossible_tokens": proof.evidence.impossible,
        "tokens_at_the_edge_of_a_cut": proof.edges,
        "seed": trial.seed,
        "reference": trial.reference.words,
        "sampling": decoder.sampling.model_dump(mode="json", exclude_none=True),
    }
    pictured = curves([proof.evidence], decision, found)
    return LevelResult(Level.SAMPLED, outcome, words, lines, facts, pictured, trial.elapsed)
