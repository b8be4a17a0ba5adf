"""llama-cpp-python's `Llama` as a callable that hands back its steps, where it has a draft model.

Its drafts (prompt lookup, or any function of the text) are compared with tokens drawn from the target, and have no q.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from specdec.losslessness.external.instrumented import AcceptanceRule, DraftedStep, InstrumentedAnswer
from specdec.sampling.params import SamplingParams

Drafts = list[tuple[int, list[int]]]
"""(length of the text, what was drafted behind it), in order."""


class Generating:
    """A callable (prompt ids, n, seed) -> ids and steps, of a loaded `llama_cpp.Llama`.

    Its weights should be of the target's precision: a quantized model is another target, to be named as a GGUF file there.
    """

    def __init__(self, llama: Any, sampling: SamplingParams) -> None:
        self._llama = llama
        self._sampling = sampling

    def __call__(self, ids: Sequence[int], n: int, seed: int) -> InstrumentedAnswer | list[int]:
        drafts: Drafts = []
        with _recorded(self._llama, drafts):
            self._llama.set_seed(seed & 0x7FFFFFFF)
            tokens = list(self._until_stop(islice(self._llama.generate(list(ids), **self._options()), n)))
        if self._llama.draft_model is None:
            return tokens
        return InstrumentedAnswer(tokens, steps_of(len(ids), tokens, drafts), AcceptanceRule.MATCH)

    def _options(self) -> dict[str, Any]:
        """All that has a default other than the plain distribution is set."""
        sampling = self._sampling
        return {
            "temp": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "min_p": sampling.min_p or 0.0,
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
        }

    def _until_stop(self, tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            yield int(token)
            if token == self._llama.token_eos():
                return


def steps_of(prompt_length: int, tokens: Sequence[int], drafts: Drafts) -> list[DraftedStep]:
    """The steps of an answer whose drafts were compared with its tokens."""
    steps, place = list[DraftedStep](), 0
    by_length = dict(drafts)
    while place < len(tokens):
        drafted, following = by_length.get(prompt_length + place, []), tokens[place:]
        pairs = zip(drafted, following, strict=False)
        accepted = next((n for n, (draft, token) in enumerate(pairs) if draft != token), min(len(drafted), len(following)))
        steps.append(DraftedStep(drafted, accepted, following[accepted] if accepted < len(following) else None))
        place += len(steps[-1].emitted)
    return steps


@contextmanager
def _recorded(llama: Any, drafts: Drafts) -> Iterator[None]:
    """The model's drafts are overheard for the time of one call."""
    draft: Callable[..., Any] | None = llama.draft_model

    def overheard(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        found = draft(input_ids, *args, **kwargs) if draft is not None else []
        drafts.append((len(input_ids), [int(token) for token in found]))
        return found

    llama.draft_model = overheard if draft is not None else None
    try:
        yield
    finally:
        llama.draft_model = draft
