"""From a decoder to its cost model: rounds of steps of all sizes and contexts, interleaved, and the medians of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from specdec.compose import load
from specdec.decoding.batching import DecodeBatch
from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.drafters.ngram import NgramDrafter
from specdec.errors import SpecError
from specdec.interfaces.parts import build_part
from specdec.interfaces.results import StepRecord
from specdec.performance.cost_model import CostModel, DrafterCost
from specdec.sampling.keyed_noise import mix
from specdec.tree_search.step_timer import Meter, Metered, Samples, Wandering, fresh_token, steadied

DRAFT_WIDTHS = (1, 2, 4, 8, 16)
PLAIN_STEPS = 4
"""Steps of plain decoding in a round, at each context."""
WARM_UP = 2
BATCH = 4
"""Sequences that draft together, to see what each adds."""
BATCH_STEPS = 3
"""Steps of those in a round, each after one of a lone sequence."""


@dataclass(frozen=True, slots=True)
class CostPlan:
    """widths: tokens of a forward, root included. contexts: cached tokens at the start of a round. rounds: samples of each."""

    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int = 7


def default_widths(most: int) -> tuple[int, ...]:
    """Every width up to 8, then in steps that grow with it."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, 1 << max(0, found[-1].bit_length() - 3))))
    return tuple(found)


def measure_costs(
    decoder: Decoder,
    plan: CostPlan,
    *,
    source: str,
    provenance: dict[str, Any],
    on_round: Callable[[], None] = lambda: None,
) -> CostModel:
    """Steps of the decoder's target and drafter, one sequence; a drafter that drafts nothing leaves no cost of its own.

    A round restarts each context, so that it stays near what it is called. The first round warms up and does not count.
    Raises SpecError for a context that the target does not hold.
    """
    _check(decoder, plan)
    meter = Meter(chain=not decoder.target.facts.trees)
    metered, drafts = _metered(decoder, meter), decoder.drafter.declaration.drafts
    plain = load("plain", target=decoder.target)
    rounds = []
    for number in range(plan.rounds + 1):
        rounds.append(_round(metered, plain, meter, plan, number))
        on_round()
    samples = steadied(rounds[1:])
    forward = tuple(tuple(median(samples.forward[context, width]) for width in plan.widths) for context in plan.contexts)
    spread = tuple(tuple(_spread(samples.forward[context, width]) for width in plan.widths) for context in plan.contexts)
    return CostModel(
        source=source,
        provenance={**provenance, "rounds": plan.rounds},
        widths=plan.widths,
        contexts=plan.contexts,
        forward_seconds=forward,
        spread=spread,
        overhead_seconds=median(samples.overhead),
        plain_overhead_seconds=median(samples.plain_overhead),
        drafter=_drafter_cost(decoder.drafter.name, samples) if drafts else None,
    )


def _check(decoder: Decoder, plan: CostPlan) -> None:
    facts = decoder.target.facts
    if not plan.widths or plan.widths[0] != 1 or not plan.contexts or plan.rounds < 1:
        raise SpecError("a cost profile needs the width 1, a context and a round")
    if decoder.drafter.declaration.drafts and plan.widths[-1] < 2:
        raise SpecError("a width of 1 drafts nothing, so that the drafter's cost stays unknown; --max-width 2 would work")
    if facts.max_tree_nodes is not None and plan.widths[-1] > facts.max_tree_nodes:
        raise SpecError(f"width {plan.widths[-1]}: this target scores at most {facts.max_tree_nodes} tokens at once")
    need = max(plan.contexts) + _growth(plan)
    if facts.max_positions is not None and need > facts.max_positions:
        raise SpecError(
            f"context {max(plan.contexts)}: a round needs up to {need} positions; the target's context holds "
            f"{facts.max_positions}"
        )


def _growth(plan: CostPlan) -> int:
    """Positions that a round may take beyond its context."""
    return sum(plan.widths) + max(plan.widths) + PLAIN_STEPS + WARM_UP + 2


def _metered(decoder: Decoder, meter: Meter) -> Decoder:
    """The decoder with trees by the meter; verified by what fits whatever is drafted."""
    vocab_size = decoder.target.facts.vocab_size
    drafter = decoder.drafter if decoder.drafter.declaration.drafts else build_part(NgramDrafter)
    builder, verifier = Metered(meter, vocab_size), Wandering(vocab_size)
    builder.declaration, verifier.declaration = Metered.declares(Metered.Options()), Wandering.declares(Wandering.Options())
    return decoder.replace(drafter=drafter, builder=builder, verifier=verifier)


def _round(metered: Decoder, plain: Decoder, meter: Meter, plan: CostPlan, number: int) -> Samples:
    """Every size at every context in turn, in an order of the round's own."""
    samples = Samples()
    runs: list[tuple[int, DecodeBatch, DecodeBatch]] = []
    meter.size = 1
    for context in plan.contexts:
        request = Request(_prompt(metered, context), max_new_tokens=_growth(plan), seed=number, ignore_eos=True)
        run, plain_run = metered.start([request]), plain.start([request])
        for _ in range(WARM_UP):
            metered.step(run)
            plain.step(plain_run)
        runs.append((context, run, plain_run))
    order = sorted(plan.widths, key=lambda width: mix(number, width))
    every = max(1, len(order) // PLAIN_STEPS)
    for place, width in enumerate(order):
        for context, run, plain_run in runs:
            if place % every == 0:
                _plain_step(plain, plain_run, context, samples)
            meter.size, meter.width = width, DRAFT_WIDTHS[(place + number) % len(DRAFT_WIDTHS)]
            _metered_step(metered, run, meter, context, samples)
    if metered.drafter.declaration.drafts:
        _batched_steps(metered, meter, plan, number, samples)
    return samples


def _batched_steps(metered: Decoder, meter: Meter, plan: CostPlan, number: int, samples: Samples) -> None:
    """Two levels of one node each, for one sequence and for a few."""
    meter.size, meter.width = 2, 1
    request = Request(_prompt(metered, plan.contexts[0]), max_new_tokens=_growth(plan), seed=number, ignore_eos=True)
    alone, together = metered.start([request]), metered.start([request] * BATCH)
    for run in (alone, together):
        metered.step(run)
    for _ in range(BATCH_STEPS):
        samples.alone.append(metered.step(alone)[0].seconds["draft"])
        samples.level[1].append(meter.levels[1])
        samples.together.append(metered.step(together)[0].seconds["draft"])


def _plain_step(plain: Decoder, run: DecodeBatch, context: int, samples: Samples) -> None:
    for record in plain.step(run):
        samples.forward[context, 1].append(_forward(record))
        samples.plain_overhead.append(_rest(record))


def _metered_step(metered: Decoder, run: DecodeBatch, meter: Meter, context: int, samples: Samples) -> None:
    for record in metered.step(run):
        samples.forward[context, meter.size].append(_forward(record))
        samples.overhead.append(_rest(record) - sum(meter.levels))
        if meter.levels:
            samples.first_level.append(meter.levels[0])
            samples.level[meter.width].append(meter.levels[1])


def _forward(record: StepRecord) -> float:
    """Scoring, and verification, which waits for what an accelerator is still computing."""
    return record.seconds["score"] + record.seconds["verify"]


def _rest(record: StepRecord) -> float:
    return record.seconds["draft"] + record.seconds["commit"]


def _prompt(decoder: Decoder, length: int) -> list[int]:
    vocab_size = decoder.target.facts.vocab_size
    return [fresh_token(position, vocab_size) for position in range(length)]


def _drafter_cost(name: str, samples: Samples) -> DrafterCost:
    widths = tuple(sorted(samples.level))
    cost = DrafterCost(
        name=name,
        first_seconds=median(samples.first_level),
        widths=widths,
        seconds=tuple(median(samples.level[width]) for width in widths),
        spread=tuple(_spread(samples.level[width]) for width in widths),
    )
    more = median(samples.together) - median(samples.alone) - (cost.level(BATCH) - cost.level(1))
    return cost.model_copy(update={"row_seconds": max(0.0, more / (2 * (BATCH - 1)))})


def _spread(values: Sequence[float]) -> float:
    """Interquartile range / median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
