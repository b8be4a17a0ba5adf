"""transformers' `generate` as a callable that hands back its steps: assisted, by prompt lookup, by MTP layers, or plain."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdec.losslessness.external.instrumented import AcceptanceRule, DraftedStep, InstrumentedAnswer
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import global_seed
from specdec.targets.quiet import quiet

Method = Callable[..., Any]


class Generating:
    """A callable (prompt ids, n, seed) -> ids and steps, of a loaded model.

    Args:
        model: A causal language model of transformers; float32 is what it will be compared with.
        sampling: Temperature and truncation; its other fields are not passed on.
        options: Arguments of `generate`, such as `assistant_model`, or fields of its `GenerationConfig`, such as
            `prompt_lookup_num_tokens` or `use_mtp`. Without one of these the answers are plain ids.
    """

    def __init__(self, model: Any, sampling: SamplingParams, **options: Any) -> None:
        self._model = model
        self._sampling = sampling
        self._assistant = options.pop("assistant_model", None)
        self._options = options

    def __call__(self, ids: Sequence[int], n: int, seed: int) -> InstrumentedAnswer | list[int]:
        drawn = bool(self._sampling.temperature)
        recorder = _Recorder(len(ids), drawn)
        inputs = torch.tensor([list(ids)], device=self._model.get_input_embeddings().weight.device)
        given = {} if self._assistant is None else {"assistant_model": self._assistant}
        with torch.inference_mode(), quiet(), global_seed(seed), _recorded(self._model, recorder):
            out = self._model.generate(
                inputs, attention_mask=torch.ones_like(inputs), generation_config=self._config(n), **given
            )
        tokens: list[int] = out[0, len(ids) :].tolist()
        if not recorder.is_used:
            return tokens
        return InstrumentedAnswer(tokens, recorder.closed(), recorder.rule)

    def _config(self, n: int) -> Any:
        from transformers import GenerationConfig

        sampling, stops = self._sampling, self._model.generation_config.eos_token_id
        truncation = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "min_p": sampling.min_p,
        }
        return GenerationConfig(
            max_new_tokens=n,
            do_sample=bool(sampling.temperature),
            eos_token_id=stops,
            pad_token_id=stops[0] if isinstance(stops, list) else stops or 0,
            **(truncation if sampling.temperature else {}),
            **self._options,
        )


@dataclass(slots=True)
class _Recorder:
    """What a candidate generator drafted, and what became of it.

    length: of the text before the step. drawn: whether tokens are drawn.
    """

    length: int
    drawn: bool
    is_used: bool = False
    steps: list[DraftedStep] = field(default_factory=list)
    _drafted: list[int] = field(default_factory=list)
    _q: Tensor | None = None

    def watch(self, generator: Any) -> Any:
        """The generator, with its two methods overheard."""
        draft, update = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            candidates, logits = draft(input_ids, *args, **kwargs)
            self._drafted = candidates[0, input_ids.shape[1] :].tolist()
            self._q = logits[0].double().softmax(-1).cpu() if self.drawn and logits is not None else None
            return candidates, logits

        def update_candidate_strategy(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            emitted = input_ids[0, self.length :].tolist()
            self.length = input_ids.shape[1]
            self.steps.append(DraftedStep(self._drafted, len(emitted) - 1, emitted[-1], self._q))
            return update(input_ids, *args, **kwargs)

        generator.get_candidates, generator.update_candidate_strategy = get_candidates, update_candidate_strategy
        self.is_used = True
        return generator

    def closed(self) -> list[DraftedStep]:
        """All steps; a text that was cut behind an accepted draft ends with it."""
        if not self.steps:
            return []
        *before, last = self.steps
        if last.accepted < len(last.drafted) and last.drafted[last.accepted] == last.next_token:
            last = DraftedStep(last.drafted, last.accepted + 1, None, last.q)
        return [*before, last]

    @property
    def rule(self) -> AcceptanceRule:
        """Transformers reads q where tokens are drawn and the generator gives logits; else it compares tokens."""
        return AcceptanceRule.REJECTION if any(step.q is not None for step in self.steps) else AcceptanceRule.MATCH


@contextmanager
def _recorded(model: Any, recorder: _Recorder) -> Iterator[None]:
    """The model's candidate generators are watched for the time of one call."""
    make = model._get_candidate_generator
    model._get_candidate_generator = lambda *args, **kwargs: recorder.watch(make(*args, **kwargs))
    try:
        yield
    finally:
        del model._get_candidate_generator
