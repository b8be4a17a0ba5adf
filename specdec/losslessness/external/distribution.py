"""The distribution of a decoder above temperature 0: by its answers, and by its steps where it hands them back."""

from typing import Any

from specdec.losslessness.external.answers import Answers
from specdec.losslessness.external.step_evidence import StepEvidence
from specdec.losslessness.external.trial import Trial
from specdec.losslessness.levels import Level, LevelResult, Outcome
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.sampled.evidence import Decision, Leaning, decide
from specdec.losslessness.sampled.statistics import FALSE_ALARM
from specdec.losslessness.sampled.verdict import curves, statements, tests, verdict

ANSWER_TOKENS = 16

PROMPTS = 4
"""So few, that the same contexts come again and their tokens can be counted."""


def judge_distribution(trial: Trial) -> LevelResult:
    """The sampled level. Raises PluginError."""
    decoder = trial.decoder
    prompts = prompts_for(decoder.target, PROMPTS, chat_format=trial.chat_format)
    size = room(decoder.target, prompts, ANSWER_TOKENS)
    proof = Answers(trial.answering, decoder, trial.reference, trial.seed, prompts, size)
    while size > 0 and not (proof.calls and trial.is_over):
        proof.run()
        trial.say(f"{proof.calls} answers, {proof.evidence.tokens} tokens")
        if proof.is_decided:
            break
    proof.close()
    decision = decide(proof.parts)
    found = {part.name: part.distances(len(decision.tests)) for part in proof.parts}
    outcome, words = _verdict(proof.steps, decision, found)
    lines = (
        ("p comes from", trial.reference.words),
        ("answers", f"{proof.calls} calls, {proof.evidence.tokens:,} tokens after {len(prompts)} prompts"),
        *_logprob_lines(proof.logprob_gaps),
        *(_step_lines(proof.steps) if proof.steps is not None else ()),
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
        "steps": None if proof.steps is None else proof.steps.plain(),
        "largest_logprob_gap": max(proof.logprob_gaps, default=None),
        "seed": trial.seed,
        "reference": trial.reference.words,
        "sampling": decoder.sampling.model_dump(mode="json", exclude_none=True),
    }
    pictured = curves(proof.parts, decision, found)
    return LevelResult(Level.SAMPLED, outcome, words, lines, facts, pictured, trial.elapsed)


def _verdict(steps: StepEvidence | None, decision: Decision, found: dict[str, Any]) -> tuple[Outcome, str]:
    """Where drafts are known, errors lean towards them, and places with a draft decide; else the answers do."""
    if steps is None:
        return verdict(decision, found, claims=True, leaning=Leaning.LIKELIER)
    places = {name: part for name, part in found.items() if name == steps.places.name}
    outcome, words = verdict(decision, places, claims=True, leaning=Leaning.DRAFTER)
    idle = steps.idle_words
    return (Outcome.INCONCLUSIVE, idle) if idle is not None and outcome is not Outcome.REFUTED else (outcome, words)


def _logprob_lines(gaps: list[float]) -> list[tuple[str, str]]:
    """How far the engine's own log-probabilities are from the reference: its precision, or another model or template."""
    if not gaps:
        return []
    words = f"the engine's are {sum(gaps) / len(gaps):.1e} from p's on average, {max(gaps):.1e} at most, before temperature"
    return [("logprobs", words)]


def _step_lines(steps: StepEvidence) -> list[tuple[str, str]]:
    """What became of the drafts."""
    lines = [("drafts", f"{steps.drafted:,} tokens drafted, {steps.accepted:,} of them accepted")]
    seen = steps.acceptance
    if seen.tokens:
        words = f"{seen.hits / seen.tokens:.3f} where {seen.expected / seen.tokens:.3f} were expected"
        lines.append(("acceptance", f"{words}, of {seen.tokens:,} drafts that might have been rejected"))
    if None in steps.rules:
        lines.append(("rule", "not stated: acceptance and what follows a rejection were not tested by themselves"))
    return lines
