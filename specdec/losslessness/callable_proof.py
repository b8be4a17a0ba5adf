"""The sampled and the near-tie level for a decoder of which nothing is known but its answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.checks import Plan, Workshop
from specdec.compose import build
from specdec.decoder import Decoder
from specdec.losslessness.callables import Answering, ask
from specdec.losslessness.evidence import Evidence, decide
from specdec.losslessness.ledger import Ledger, listed
from specdec.losslessness.levels import Level, LevelResult, Outcome, Progress
from specdec.losslessness.long_runs import Judge
from specdec.losslessness.overhearing import Context
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.reference import Reference, reference_for
from specdec.losslessness.replanning import replanned
from specdec.losslessness.runtime import LEAST_NOISE, NEAR_TIE
from specdec.losslessness.sampled_report import curves, statements, tests, verdict
from specdec.losslessness.statistics import FALSE_ALARM, Floats
from specdec.losslessness.tree_checks import WIDTHS, wanted_features, width_noise
from specdec.noise import mix
from specdec.warp import Warp

ANSWER_TOKENS = 16
CALLS = 16
"""Between two looks at the evidence."""

PROMPTS = 4
"""So few, that the same contexts come again and their tokens can be counted."""

MEMOISED = 1 << 22
"""Logits that are kept, so that small models answer each context once."""

MOST_CONTEXTS = 4096


@dataclass(slots=True)
class CallableProof:
    """Answers of one function, judged token by token. seen: by context, tokens counted in turns; stops: end a text."""

    answering: Answering
    decoder: Decoder
    reference: Reference
    seed: int
    prompts: list[list[int]]
    size: int
    evidence: Evidence = field(default_factory=lambda: Evidence("answers"))
    calls: int = 0
    edges: int = 0
    _memo: dict[Context, Tensor] = field(default_factory=dict)
    _seen: dict[Context, list[list[int]]] = field(default_factory=dict)
    _cells: dict[Context, Floats] = field(default_factory=dict)

    def run(self) -> int:
        """CALLS more answers, seeds of which none comes twice; the number of tokens judged."""
        texts = []
        for _ in range(CALLS):
            prompt = self.prompts[self.calls % len(self.prompts)]
            seed = mix(self.seed, 71, self.calls) >> 33
            self.calls += 1
            answer = ask(self.answering, prompt, self.size, seed, self.decoder.target.facts.vocab_size)
            texts.append(((*prompt, *self._whole(answer)), len(prompt)))
        laws = self._laws(texts)
        for number, ((tokens, first), rows) in enumerate(zip(texts, laws, strict=True)):
            self._judge(tokens, first, rows, self.calls + number)
        return sum(len(tokens) - first for tokens, first in texts)

    def _whole(self, answer: tuple[int, ...]) -> tuple[int, ...]:
        """Up to the first stop token, which is judged as the last one."""
        stops = self.decoder.target.facts.stop_ids
        end = next((place for place, token in enumerate(answer) if token in stops), len(answer))
        return answer[: end + 1]

    def _laws(self, texts: Sequence[tuple[Context, int]]) -> list[list[Tensor]]:
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

    def _judge(self, tokens: Context, first: int, rows: list[Tensor], number: int) -> None:
        judge = Judge(Warp(self.decoder.sampling, prompt_length=first, stop_ids=frozenset()), mix(self.seed, 72, number))
        for row, end in zip(rows, range(first, len(tokens)), strict=True):
            law = judge.see(row, tokens[:end], tokens[end], None)
            if end - first < 3:
                self._count(tokens[:end], tokens[end], law.dense(row.shape[-1]))
        judge.hand_in(self.evidence)
        self.edges += judge.edges

    def _count(self, context: Context, token: int, law: Tensor) -> None:
        """Tokens by context, for chi-square; on a large vocabulary the likeliest 63 and all others together."""
        if context not in self._seen and len(self._seen) >= MOST_CONTEXTS:
            return
        cells = law if len(law) <= 64 else law.topk(63).values
        place = token if len(law) <= 64 else _rank(law, token)
        halves = self._seen.setdefault(context, [[], []])
        halves[sum(map(len, halves)) % 2].append(place)
        self._cells.setdefault(context, np.append(cells.numpy(), max(0.0, 1 - float(cells.sum())))[:64])

    def close(self) -> None:
        """Hand the counts to the evidence."""
        often = [context for context, halves in self._seen.items() if len(halves[0]) >= 10]
        if not often:
            return
        width = max(len(self._cells[context]) for context in often)
        laws = np.zeros((len(often), width))
        counts = (np.zeros_like(laws), np.zeros_like(laws))
        for number, context in enumerate(often):
            laws[number, : len(self._cells[context])] = self._cells[context]
            for half in (0, 1):
                counts[half][number] = np.bincount(self._seen[context][half], minlength=width)
        self.evidence.laws, self.evidence.counts = laws / laws.sum(1, keepdims=True), counts


def _rank(law: Tensor, token: int) -> int:
    best = law.topk(63).indices.tolist()
    return best.index(token) if token in best else 63


def prove_callable(
    answering: Answering, plan: Plan, shop: Workshop, *, seconds: float, seed: int, progress: Progress
) -> LevelResult:
    """The near-tie level at temperature 0, the sampled level above, against the target in float32.

    plan: plain decoding of the target to be followed.
    """
    began = time.monotonic()
    progress(0.0, "loading the model")
    exact = replanned(plan, shop, dtype="float32")
    decoder = build(exact, shop)
    reference = reference_for(exact, decoder.target)
    if decoder.sampling.temperature:
        return _sampled(answering, decoder, reference, began, seconds, seed, progress)
    return _near_ties(answering, decoder, reference, began, seconds, seed, progress)


def _sampled(
    answering: Answering, decoder: Decoder, reference: Reference, began: float, seconds: float, seed: int, progress: Progress
) -> LevelResult:
    prompts = prompts_for(decoder.target, PROMPTS)
    size = room(decoder.target, prompts, ANSWER_TOKENS)
    proof = CallableProof(answering, decoder, reference, seed, prompts, size)
    while size > 0 and (not proof.calls or time.monotonic() - began < seconds):
        proof.run()
        progress(min(1.0, (time.monotonic() - began) / seconds), f"{proof.calls} answers, {proof.evidence.tokens} tokens")
        if proof.evidence.impossible or proof.evidence.wealth.p_value < FALSE_ALARM / 10:
            break
    proof.close()
    decision = decide([proof.evidence])
    found = {"answers": proof.evidence.distances(len(decision.tests))}
    outcome, words = verdict(decision, found, claims=True)
    lines = (
        ("p comes from", reference.words),
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
        "seed": seed,
        "reference": reference.words,
        "sampling": decoder.sampling.model_dump(mode="json", exclude_none=True),
    }
    pictured = curves([proof.evidence], decision, found)
    return LevelResult(Level.SAMPLED, outcome, words, lines, facts, pictured, time.monotonic() - began)


def _near_ties(
    answering: Answering, decoder: Decoder, reference: Reference, began: float, seconds: float, seed: int, progress: Progress
) -> LevelResult:
    """Gaps of the answers in one plain float32 forward; the width noise is that of the target on the first answer."""
    prompts = prompts_for(decoder.target)
    size = room(decoder.target, prompts, 2 * ANSWER_TOKENS)
    ledger, noise = Ledger(), LEAST_NOISE
    for number, prompt in enumerate(prompts if size > 0 else []):
        if number and time.monotonic() - began > seconds:
            break
        answer = ask(answering, prompt, size, mix(seed, 73, number) >> 33, decoder.target.facts.vocab_size)
        if not answer:
            continue
        text = (*prompt, *answer)
        if number < 2:
            widths = [width for width in WIDTHS if width <= len(answer)]
            found = width_noise(decoder.target, text, len(prompt), wanted_features(decoder.target, ()), widths)
            noise = max(noise, found.logits)
        rows = reference.rows([(text, len(prompt))])[0]
        warp = Warp(decoder.sampling, prompt_length=len(prompt), stop_ids=frozenset())
        ledger.enter(prompt, answer, list(torch.unbind(rows)), warp)
        progress(min(1.0, (time.monotonic() - began) / seconds), f"ledger: {ledger.tokens} tokens")
    return _ledger_verdict(ledger, NEAR_TIE * noise, reference, seed, time.monotonic() - began)


def _ledger_verdict(ledger: Ledger, limit: float, reference: Reference, seed: int, seconds: float) -> LevelResult:
    beyond = ledger.beyond(limit)
    if beyond:
        worst = max(beyond, key=lambda d: d.gap)
        outcome = Outcome.REFUTED
        words = f"{len(beyond)} of {ledger.tokens} tokens are no near-tie: one is {worst.gap:.2g} off, limit {limit:.2g}"
    elif not ledger.tokens:
        outcome, words = Outcome.INCONCLUSIVE, "no token was returned"
    else:
        outcome, words = Outcome.PROVED, f"greedy up to ties (L2): no gap above {limit:.2g} in {ledger.tokens} tokens"
    lines = (
        ("logits come from", reference.words),
        ("ledger", f"{len(ledger.divergences)} of {ledger.tokens} tokens are not the argmax ({ledger.rate:.2g} in 1,000)"),
    )
    facts: dict[str, Any] = {
        "near_tie_limit": limit,
        "ledger": {
            "tokens": ledger.tokens,
            "divergences": len(ledger.divergences),
            "per_1000_tokens": ledger.rate,
            "largest_gap": ledger.largest,
            "histogram": ledger.histogram(),
            "listed": listed(ledger, limit),
        },
        "seed": seed,
        "reference": reference.words,
    }
    return LevelResult(Level.RUNTIME, outcome, words, lines, facts, (), seconds)
