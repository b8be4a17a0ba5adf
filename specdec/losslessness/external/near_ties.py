"""Greedy answers of a decoder of which nothing else is known, held against one plain forward."""

from dataclasses import dataclass
from typing import Any

import torch

from specdec.losslessness.external.callables import ask, judged_part
from specdec.losslessness.external.instrumented import Steps, idle_words
from specdec.losslessness.external.trial import Trial
from specdec.losslessness.levels import Level, LevelResult, Outcome
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.runtime.near_ties import LEAST_NOISE, NEAR_TIE, Ledger, listed
from specdec.losslessness.runtime.tree_checks import WIDTHS, Noise, wanted_features, width_noise
from specdec.sampling.keyed_noise import mix
from specdec.sampling.logits_warper import LogitsWarper

ANSWER_TOKENS = 32

LEAST_TOKENS = 64
"""Fewer prove nothing."""


@dataclass(slots=True)
class _Drafts:
    """Tokens so far. known: whether the callable says what it drafted."""

    drafted: int = 0
    accepted: int = 0
    known: bool = False

    def add(self, steps: Steps | None) -> None:
        self.known |= steps is not None
        for step, _ in steps or ():
            self.drafted += len(step.drafted)
            self.accepted += step.accepted

    @property
    def idle_words(self) -> str | None:
        return idle_words(self.drafted, self.accepted) if self.known else None


def judge_ties(trial: Trial) -> LevelResult:
    """Gaps of the answers in one plain float32 forward; the width noise is that of the target on the first answer."""
    decoder, seed = trial.decoder, trial.seed
    prompts = prompts_for(decoder.target, chat_format=trial.chat_format)
    size = room(decoder.target, prompts, ANSWER_TOKENS)
    ledger, noise, drafts, facts = Ledger(), Noise(), _Drafts(), decoder.target.facts
    for number, prompt in enumerate(prompts if size > 0 else []):
        if number and trial.is_over:
            break
        asked = ask(trial.answering, prompt, size, mix(seed, 73, number) >> 33, facts.vocab_size)
        answered = judged_part(asked.tokens, size, facts.stop_ids)
        drafts.add(asked.steps)
        text = (*prompt, *answered.tokens)
        widths = [width for width in WIDTHS if width <= len(answered.tokens)]
        if number < 2 and widths:
            noise.add(width_noise(decoder.target, text, len(prompt), wanted_features(decoder.target, ()), widths))
        rows = trial.reference.rows([(text, len(prompt))])[0]
        warper = LogitsWarper(decoder.sampling, prompt_length=len(prompt), stop_ids=frozenset())
        tokens = answered.tokens
        if answered.stop_left_out:
            tokens = (*tokens[:-1], max(sorted(facts.stop_ids), key=lambda stop: float(rows[-1][stop])))
        ledger.enter(prompt, tokens, list(torch.unbind(rows)), warper)
        trial.say(f"ledger: {ledger.tokens} tokens")
    return _ledger_verdict(ledger, NEAR_TIE * max(noise.logits, LEAST_NOISE), noise.fault(facts.dtype), drafts, trial)


def _ledger_verdict(ledger: Ledger, limit: float, noise_fault: str | None, drafts: _Drafts, trial: Trial) -> LevelResult:
    beyond = ledger.beyond(limit)
    if beyond:
        worst = max(beyond, key=lambda d: d.gap)
        outcome = Outcome.REFUTED
        words = f"{len(beyond)} of {ledger.tokens} tokens are no near-tie: one is {worst.gap:.2g} off, limit {limit:.2g}"
    elif noise_fault is not None:
        outcome, words = Outcome.INCONCLUSIVE, f"no limit for near-ties can be had from this target: {noise_fault}"
    elif drafts.idle_words is not None:
        outcome, words = Outcome.INCONCLUSIVE, drafts.idle_words
    elif ledger.tokens < LEAST_TOKENS:
        outcome, words = Outcome.INCONCLUSIVE, f"only {ledger.tokens} tokens were judged; at least {LEAST_TOKENS} are needed"
    else:
        outcome, words = Outcome.PROVED, f"greedy up to ties (L2): no gap above {limit:.2g} in {ledger.tokens} tokens"
    lines = (
        ("logits come from", trial.reference.words),
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
        "steps": {"drafted": drafts.drafted, "accepted": drafts.accepted} if drafts.known else None,
        "seed": trial.seed,
        "reference": trial.reference.words,
    }
    return LevelResult(Level.RUNTIME, outcome, words, lines, facts, (), trial.elapsed)
