"""One child of the root where many tokens are possible: what keeps the likeliest ones only must not go unseen."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specdec.decoding.decoder import Decoder
from specdec.losslessness.exact.budget import OUTCOMES_PER_SECOND
from specdec.losslessness.exact.distance import ExactProof
from specdec.losslessness.exact.enumeration import prove_step, step_size, target_distribution
from specdec.losslessness.exact.guards import with_smaller_drafts
from specdec.losslessness.exact.place_models import certain_model, place_prefix
from specdec.losslessness.exact.toy_models import StandIn
from specdec.sampling.keyed_noise import mix, uniforms

POSSIBLE = (64, 48, 32, 16)
"""Tokens that are possible at once, as many as there is time for."""

DECADES = 9.0
"""Between the likeliest and the least likely token."""


@dataclass(frozen=True, slots=True)
class WideRow:
    """What was proved. possible: tokens of the target's row at the root. seconds: nominal."""

    model: StandIn
    proof: ExactProof
    possible: int
    seconds: float


def prove_wide_row(decoder_for: Callable[[StandIn], Decoder], *, seconds: float, deadline: float) -> WideRow | None:
    """None where there is no time for any. deadline: as in `prove_step`."""
    for size in POSSIBLE:
        model = wide_model(size)
        decoder = with_smaller_drafts(decoder_for(model), depth=1, nodes=1)
        steps = step_size(decoder, model.prefix, depth=None, probes=2)
        needed = (steps.leaves + 2 * steps.drafts) / OUTCOMES_PER_SECOND
        if needed <= seconds:
            proof = prove_step(decoder, model.prefix, depth=None, deadline=deadline)
            row = target_distribution(decoder.target, decoder.sampling, model.prefix)(())
            return WideRow(model, proof, sum(probability > 0 for probability in row), needed)
    return None


def wide_model(vocab_size: int) -> StandIn:
    """A model at whose root every token is possible, from likely ones down to one in a thousand million, and certain below it.

    Other tokens are likely to the target than to the drafter.
    """
    prefix = place_prefix(0, vocab_size)
    elsewhere = certain_model(0, vocab_size, prefix, agree=True, ranked=False)
    p, q = ({"rows": {"": _graded(vocab_size, mix(57, side))}} for side in (0, 1))
    return StandIn("wide", vocab_size, {**elsewhere.target, **p}, {**elsewhere.drafter, **q}, prefix)


def _graded(size: int, key: int) -> tuple[float, ...]:
    """A row in which each token is a little likelier than the next in some order."""
    ranks = uniforms(key, torch.arange(size)).argsort().argsort()
    weights = 10.0 ** (-DECADES * ranks.double() / max(1, size - 1))
    return tuple((weights / weights.sum()).tolist())
