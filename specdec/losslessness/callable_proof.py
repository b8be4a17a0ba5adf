"""The sampled and the near-tie level for a decoder of which nothing is known but its answers."""

import time

from specdec.compose import build
from specdec.losslessness.callable_law import judge_law
from specdec.losslessness.callable_ties import judge_ties
from specdec.losslessness.callables import Answering
from specdec.losslessness.levels import LevelResult, Progress
from specdec.losslessness.reference import reference_for
from specdec.losslessness.replanning import replanned
from specdec.losslessness.trial import Trial
from specdec.plans import Plan, Workshop


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
    judge = judge_law if decoder.sampling.temperature else judge_ties
    return judge(Trial(answering, decoder, reference, seed, began, seconds, progress))
