"""Models that are certain until a later step of the decode loop, and undecided at one node of the draft of that step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from specdec.decoding.decoder import Decoder
from specdec.losslessness.exact.place_models import LEAST_TOKENS, Siblings, certain_model, place_model, place_prefix
from specdec.losslessness.exact.runs import emitted_before
from specdec.losslessness.exact.toy_models import StandIn

PROMPT = 5
"""Tokens of the prompts."""

TRIES = 8


@dataclass(frozen=True, slots=True)
class LaterSteps:
    """decoder_for: around a model. vocab_size: of all models; None: as many as siblings need. ranked: as in place_model."""

    decoder_for: Callable[[StandIn], Decoder]
    vocab_size: int | None
    ranked: bool

    def after_steps(self, siblings: Siblings, step: int, agree: bool, number: int) -> Iterator[StandIn]:
        """Models of the siblings in that step, with fewer and fewer of them. agree: whether all drafts before are accepted."""
        for count in range(siblings.count, 0, -1):
            fewer = replace(siblings, count=count)
            size = self._size(fewer)
            if fewer.least_tokens <= size:
                prompt, model = place_prefix(number, size, PROMPT), count - 1 - number % count
                before = certain_model(model, size, prompt, agree=agree, ranked=self.ranked)
                emitted = emitted_before(self.decoder_for(before), prompt, steps=step - 1)
                yield place_model(fewer, model, prompt, vocab_size=size, emitted=emitted, agree=agree, ranked=self.ranked)

    def after_a_stop(self, siblings: Siblings) -> Iterator[StandIn]:
        """One of the first siblings in the first step after a prompt that ends in a stop token, which ends nothing."""
        first = replace(siblings, count=1)
        size = self._size(first)
        for number in range(TRIES if first.least_tokens <= size else 0):
            prompt = place_prefix(number, size, PROMPT)
            stops = {"stop_ids": [prompt[-1]]}
            before = certain_model(number, size, prompt, agree=False, ranked=self.ranked)
            emitted = emitted_before(self.decoder_for(before), prompt, steps=0)
            if emitted[0] != prompt[-1]:
                model = place_model(first, number, prompt, vocab_size=size, emitted=emitted, ranked=self.ranked)
                yield replace(model, target={**model.target, **stops})
                return

    def _size(self, siblings: Siblings) -> int:
        return self.vocab_size if self.vocab_size is not None else max(siblings.least_tokens, LEAST_TOKENS)
