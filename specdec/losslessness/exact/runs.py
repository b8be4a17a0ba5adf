"""Runs through the decode loop, by enumeration: of one sequence, or of one of a batch while the others begin and end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum, nan

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.decoding.sequence import Sequence as LiveSequence
from specdec.errors import SpecdecError
from specdec.losslessness.exact.checked_rng import Probe, distribution_of
from specdec.losslessness.exact.distance import Emission, ExactProof, NextDistribution, prove
from specdec.losslessness.exact.enumeration import PROBES, target_distribution
from specdec.losslessness.exact.guards import blamed
from specdec.losslessness.exact.shared_noise import Witness, check_run, owes_the_draws, shares_noise
from specdec.sampling.rng import RequestRng, seeded

ROWS = 3
"""Sequences that are decoded at once."""

MAX_NEW_TOKENS = 64


def prove_run(
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    steps: int = 2,
    max_new_tokens: int = 6,
    num_tokens: int | None = None,
    deadline: float | None = None,
) -> ExactProof:
    """Prefill and `steps` consecutive steps of `Decoder.step`, states and all."""
    distribution = run_distribution(decoder, prompt, steps=steps, max_new_tokens=max_new_tokens, deadline=deadline)
    return _measured(decoder, prove(distribution, _target(decoder, prompt), num_tokens=num_tokens))


def run_distribution(
    decoder: Decoder, prompt: Sequence[int], *, steps: int, max_new_tokens: int, deadline: float | None = None
) -> dict[Emission, float]:
    """The distribution of what `steps` calls of `Decoder.step` emit after the prefill, at most `max_new_tokens` tokens.

    A run that has ended early keeps its end. Emission.accepted has an entry per step, 0 for steps that did not happen.
    """
    return distribution_of(_running(decoder, prompt, steps, max_new_tokens), deadline=deadline)


def run_leaves(decoder: Decoder, prompt: Sequence[int], *, steps: int, max_new_tokens: int, probes: int = PROBES) -> float:
    """About how many outcomes of the random draws `run_distribution` goes through."""
    run = _running(decoder, prompt, steps, max_new_tokens)
    walks = [Probe(number) for number in range(probes)]
    for walk in walks:
        run(walk.rng)
    return fsum(walk.leaves for walk in walks) / probes


def _running(decoder: Decoder, prompt: Sequence[int], steps: int, max_new_tokens: int) -> Callable[[RequestRng], Emission]:
    coupled = owes_the_draws(decoder)

    def run(rng: RequestRng) -> Emission:
        witness = Witness(rng.target)
        rng = RequestRng(rng.draft, witness if coupled else rng.target)
        with blamed(_names(decoder)):
            batch = decoder.start([Request(tuple(prompt), max_new_tokens=max_new_tokens)], rng_for=lambda _: rng)
            row = (batch.sequences + batch.ended)[0]
            for _ in range(steps):
                decoder.step(batch)
                if batch.state is not None:
                    batch.state.check_integrity()
        accepted = [record.accepted for record in row.records]
        tokens = tuple(row.tokens[len(prompt) :])
        if coupled:
            check_run(witness, tokens, len(prompt), decoder.verifier.name)
        return Emission(tokens, tuple(accepted + [0] * (steps - len(accepted))))

    return run


def prove_later_step(decoder: Decoder, prompt: Sequence[int], *, steps: int, deadline: float | None = None) -> ExactProof:
    """The first `steps` steps of the second of four requests. The first soon ends, and others begin, two samples each."""
    distribution = distribution_of(_in_a_batch(decoder, prompt, steps), deadline=deadline)
    return _measured(decoder, prove(distribution, _target(decoder, prompt)))


def later_step_leaves(decoder: Decoder, prompt: Sequence[int], *, steps: int, probes: int = 2) -> float:
    """About how many outcomes `prove_later_step` goes through."""
    run = _in_a_batch(decoder, prompt, steps)
    walks = [Probe(number) for number in range(probes)]
    for walk in walks:
        run(walk.rng)
    return sum(walk.leaves for walk in walks) / probes


def emitted_before(decoder: Decoder, prompt: Sequence[int], *, steps: int) -> tuple[int, ...]:
    """What the request emits in its first `steps` steps where everything is certain."""
    return _in_a_batch(decoder, prompt, steps)(Probe(0).rng).tokens


def _in_a_batch(decoder: Decoder, prompt: Sequence[int], steps: int) -> Callable[[RequestRng], Emission]:
    coupled = owes_the_draws(decoder)
    requests = [
        Request((*prompt, prompt[0]), max_new_tokens=3, seed=1),
        Request(tuple(prompt), max_new_tokens=MAX_NEW_TOKENS, seed=0),
        Request(tuple(prompt[1:]), max_new_tokens=MAX_NEW_TOKENS, seed=2, n=2),
        Request((*prompt[:1], *prompt), max_new_tokens=MAX_NEW_TOKENS, seed=3, n=2),
    ]

    def run(rng: RequestRng) -> Emission:
        witness = Witness(rng.target)
        own = RequestRng(rng.draft, witness if coupled else rng.target)
        with blamed(f"{_names(decoder)} in a batch"):
            batch = decoder.start(requests, batch_size=ROWS, rng_for=lambda key: own if key == 0 else seeded(key))
            for _ in range(steps):
                decoder.step(batch)
                if batch.state is not None:
                    batch.state.check_integrity()
        _check_keys([*batch.sequences, *batch.ended, *batch.waiting])
        sequence = _second([*batch.sequences, *batch.ended])
        tokens = tuple(sequence.tokens[len(prompt) :])
        if coupled:
            check_run(witness, tokens, len(prompt), decoder.verifier.name)
        accepted = [record.accepted for record in sequence.records]
        return Emission(tokens, tuple(accepted + [0] * (steps - len(accepted))))

    return run


def _check_keys(sequences: Sequence[LiveSequence]) -> None:
    """Raise SpecdecError unless every sequence draws with a key of its own: equal keys would give equal draws."""
    keys = [one.seed for one in sequences]
    if len(set(keys)) < len(keys):
        raise SpecdecError(f"two sequences of a batch, of different requests or samples of one, draw with the same key: {keys}")


def _second(sequences: Sequence[LiveSequence]) -> LiveSequence:
    return next(one for one in sequences if one.request == 1)


def _target(decoder: Decoder, prompt: Sequence[int]) -> NextDistribution:
    return target_distribution(decoder.target, decoder.sampling, prompt)


def _measured(decoder: Decoder, proof: ExactProof) -> ExactProof:
    """Without a distance where a lossy rule takes drafts that share the target's noise: here they are drawn apart from it."""
    apart = shares_noise(decoder) and not owes_the_draws(decoder) and decoder.sampling.temperature
    return replace(proof, tv=nan, violations=()) if apart else proof


def _names(decoder: Decoder) -> str:
    return f"drafter '{decoder.drafter.name}', tree '{decoder.builder.name}' or verifier '{decoder.verifier.name}'"
