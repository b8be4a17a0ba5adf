"""The price of a rule on a real model: the total variation of its tokens from the target's, over prompts, beside tau."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.decoding.callbacks import StepInfo
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.losslessness.price.step_price import step_prices
from specdec.losslessness.real_prompts import room
from specdec.losslessness.rules.comparison import CONFIDENCE, Mean
from specdec.sampling.keyed_noise import mix, request_key

ANSWER_TOKENS = 24
"""Of each prompt, in a round."""


@dataclass(frozen=True, slots=True)
class Price:
    """tv: total variation a token, mean over prompts; tau: tokens a step. tokens, steps, prompts: how many were looked at."""

    tv: Mean
    tau: Mean
    tokens: float
    steps: int
    prompts: int

    @property
    def upper_bound(self) -> float:
        """The upper end of the 95 % interval over prompts.

        At least 1 - 0.05^(1/n) of n tokens: that many alike say no more, even if none was apart from the target's distribution.
        """
        spread = 1.0 if self.tv.spread is None else self.tv.spread
        unseen: float = 1 - (1 - CONFIDENCE) ** (1 / self.tokens)
        return min(1.0, max(self.tv.value + spread, unseen))

    @property
    def words(self) -> str:
        """In one line."""
        spreads = ["" if mean.spread is None else f" ± {mean.spread:.3f}" for mean in (self.tv, self.tau)]
        return (
            f"total variation {self.tv.value:.3f}{spreads[0]} a token, at most {self.upper_bound:.3f} (95 %), at tau "
            f"{self.tau.value:.2f}{spreads[1]} ({self.steps} steps, {self.prompts} prompts)"
        )

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "tv": self.tv.value,
            "tv_spread": self.tv.spread,
            "tv_upper_bound": self.upper_bound,
            "confidence": CONFIDENCE,
            "tau": self.tau.value,
            "tau_spread": self.tau.spread,
            "tokens": self.tokens,
            "steps": self.steps,
            "prompts": self.prompts,
        }


@dataclass(slots=True)
class _Tally:
    """Of one prompt."""

    tokens: float = 0.0
    apart: float = 0.0
    emitted: int = 0
    steps: int = 0

    def add(self, decoder: Decoder, info: StepInfo, key: int) -> None:
        size = decoder.target.facts.vocab_size
        for price in step_prices(decoder.verifier, info.tree, info.target_probs, info.verdict.path, size, key):
            self.tokens += price.tokens
            self.apart += price.tokens * price.tv
        self.emitted += len(info.verdict.path) + 1
        self.steps += 1


def _ask(tally: _Tally, decoder: Decoder, prompt: Sequence[int], length: int, seed: int, until: float) -> None:
    """One answer, or as much of it as time allows; one step at least."""
    before = tally.steps

    def on_step(info: StepInfo) -> None:
        if tally.steps == before or time.monotonic() < until:
            tally.add(decoder, info, mix(seed, 31, tally.steps))

    options: dict[str, Any] = {"max_new_tokens": length, "seed": seed}
    for _ in decoder.stream(list(prompt), step_callback=on_step, **options):
        if tally.steps > before and time.monotonic() > until:
            return


def measure_price(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    seconds: float,
    seed: int,
    progress: Callable[[float, str], None] = lambda share, words: None,
) -> Price:
    """Answer the prompts in turn, at the decoder's own sampling, until the time is over; each is asked once at least.

    The random draws of the rule are integrated out at every step: only which prefixes come up is left to chance, and these are
    the strategy's own.

    Raises:
        SpecError: Where there is nothing to measure.
        SpecdecError: Where the price of this rule is not measured on such drafts.
    """
    began, tallies, number = time.monotonic(), [_Tally() for _ in prompts], 0
    length = room(decoder.target, prompts, ANSWER_TOKENS) if prompts else 0
    if length < 2:
        raise SpecError("there are no prompts to measure the price of the rule on, or no room for answers to them")
    while number < len(prompts) or time.monotonic() < began + seconds:
        place, until = number % len(prompts), began + seconds * min(1.0, (number + 1) / len(prompts))
        _ask(tallies[place], decoder, prompts[place], length, request_key(seed, number), until)
        number += 1
        progress(
            min(1.0, (time.monotonic() - began) / max(seconds, 1e-9)), f"price: {sum(tally.steps for tally in tallies)} steps"
        )
        if number >= len(prompts) and not any(tally.steps for tally in tallies):
            raise SpecError("every answer ended with its first token, so that the rule has no price here")
    return _price([tally for tally in tallies if tally.tokens])


def _price(tallies: Sequence[_Tally]) -> Price:
    return Price(
        tv=Mean.of([tally.apart / tally.tokens for tally in tallies]),
        tau=Mean.of([tally.emitted / tally.steps for tally in tallies]),
        tokens=sum(tally.tokens for tally in tallies),
        steps=sum(tally.steps for tally in tallies),
        prompts=len(tallies),
    )
