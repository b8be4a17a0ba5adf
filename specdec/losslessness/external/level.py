"""The sampled and the near-tie level for a decoder of which nothing is known but its answers."""

import time

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.external.callables import Answering
from specdec.losslessness.external.distribution import judge_distribution
from specdec.losslessness.external.near_ties import judge_ties
from specdec.losslessness.external.trial import Trial
from specdec.losslessness.levels import LevelResult, Progress
from specdec.losslessness.real_prompts import replanned
from specdec.losslessness.reference_model import reference_for


def prove_callable(
    answering: Answering,
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float,
    seed: int,
    progress: Progress,
    chat_format: ChatFormat = PLAIN_CHAT,
) -> LevelResult:
    """The near-tie level at temperature 0, the sampled level above, against the target in float32.

    resolved: plain decoding of the target to be followed.
    """
    began = time.monotonic()
    progress(0.0, "loading the model")
    exact = replanned(resolved, catalog, dtype="float32")
    decoder = build(exact, catalog)
    reference = reference_for(exact, decoder.target)
    judge = judge_distribution if decoder.sampling.temperature else judge_ties
    return judge(Trial(answering, decoder, reference, seed, began, seconds, progress, chat_format))
