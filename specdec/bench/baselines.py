"""transformers' own decoding beside ours: `generate`, prompt lookup and assisted generation, on models as it loads them."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specdec.bench.contender import Contender, Outcome, Task, Timed, synchroniser
from specdec.bench.measurements import Counts
from specdec.config.resolved_spec import ResolvedPart
from specdec.errors import SpecError
from specdec.targets.builtin import BuiltinOptions
from specdec.targets.capability import text_config
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.huggingface import HuggingFaceOptions
from specdec.targets.loading import load_model, load_tokenizer
from specdec.targets.quiet import quiet
from specdec.targets.stop_tokens import stop_ids

GENERATE, LOOKUP, ASSISTED = "transformers", "transformers-lookup", "transformers-assisted"

LOOKUP_TOKENS = 10
"""Drafted tokens of prompt lookup where its name gives none: transformers' own default."""

NAMES = f"{GENERATE}, {LOOKUP}, {LOOKUP}-N (drafting N tokens), {ASSISTED}"


@dataclass(frozen=True, slots=True)
class Peer:
    """A way of decoding of transformers. lookup: tokens that prompt lookup drafts; assisted: by a draft model."""

    name: str
    lookup: int | None = None
    assisted: bool = False


def peer_of(name: str) -> Peer:
    """The peer of a name. Raises SpecError for one that there is not."""
    if name == GENERATE:
        return Peer(name)
    if name == ASSISTED:
        return Peer(name, assisted=True)
    found = re.fullmatch(rf"{LOOKUP}(-([1-9]\d{{0,2}}))?", name)
    if found is None:
        raise SpecError(f"no peer is called '{name}'; there are {NAMES}")
    return Peer(name, lookup=int(found[2] or LOOKUP_TOKENS))


def runs_on_transformers(target: ResolvedPart) -> bool:
    """Whether the target is one whose model transformers can load by itself."""
    return isinstance(target.options, BuiltinOptions | HuggingFaceOptions)


def reference_model(target: ResolvedPart) -> Any:
    """The target's model as a user of transformers gets it, in the same dtype and on the same device: a copy of its own.

    Raises SpecError for a target that is no transformers model.
    """
    from transformers import GenerationConfig

    options = target.options
    if isinstance(options, BuiltinOptions):
        where: dict[str, Any] = {"model": str(unpacked_folder()), "revision": None, "trust_remote_code": False}
    elif isinstance(options, HuggingFaceOptions):
        more = ("model", "device_map", "revision", "trust_remote_code")
        where = {name: getattr(options, name) for name in more}
    else:
        raise SpecError(f"target '{target.name}' is no transformers model: leave out --peer")
    attention = "eager" if options.attention == "eager" else "sdpa"
    with quiet():
        model = load_model(dtype=options.dtype, device=options.device, attention=attention, **where).eval()
        # What the checkpoint recommends (temperatures, penalties) would fill in for settings that are left at their defaults.
        tokenizer = load_tokenizer(where["model"], revision=where["revision"], trust_remote_code=where["trust_remote_code"])
        ends = stop_ids(model, tokenizer, _vocab_size(model))
        model.generation_config = GenerationConfig(eos_token_id=sorted(ends) or None)
    return model.requires_grad_(False)


def _vocab_size(model: Any) -> int:
    return int(text_config(model.config).vocab_size)


def peer_contender(peer: Peer, model: Any, assistant: Any | None) -> Contender:
    """A contender of a loaded model. Assisted generation and prompt lookup take one prompt at a time."""
    if peer.assisted and assistant is None:
        raise SpecError(f"{peer.name} needs a draft model: name one by --assistant, or bench a strategy whose drafter has one")
    single = peer.assisted or peer.lookup is not None
    hugging = _Hugging(model, stop_ids(model, None, _vocab_size(model)), peer, assistant if peer.assisted else None)
    return Contender(peer.name, hugging.answer, max_batch=1 if single else None)


@dataclass(slots=True)
class _Clock:
    """A streamer of transformers: notes when tokens come, and how many. The prompt comes first."""

    began: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    prompt_seen: bool = False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.arrivals.append((time.perf_counter() - self.began, value.numel()))
        self.prompt_seen = True

    def end(self) -> None:
        """Nothing more comes."""


@dataclass(frozen=True, slots=True)
class _Hugging:
    model: Any
    stop_ids: frozenset[int]
    peer: Peer
    assistant: Any | None

    def answer(self, task: Task) -> Timed:
        """Batch by batch: a place that an answer leaves stays empty until all have ended. Forwards: at batch 1 only."""
        size = task.batch_size or len(task.prompts)
        cuts = [slice(begin, begin + size) for begin in range(0, len(task.prompts), size)]
        parts = [self._batch(replace(task, prompts=task.prompts[cut], seeds=task.seeds[cut])) for cut in cuts]
        outcomes = tuple(outcome if size == 1 else replace(outcome, counts=None) for part in parts for outcome in part.outcomes)
        return Timed(outcomes, sum(part.seconds for part in parts), parts[0].first_token_seconds)

    def _batch(self, task: Task) -> Timed:
        device = self.model.get_input_embeddings().weight.device
        ids, mask = _padded(task.prompts, self._pad, device)
        options = self._options(task)
        wait = synchroniser(device)
        with torch.inference_mode(), quiet():
            began = time.perf_counter()
            clock = _Clock(began) if len(task.prompts) == 1 else None
            out = self.model.generate(ids, attention_mask=mask, streamer=clock, **options)
            wait()
            seconds = time.perf_counter() - began
        answers = [self._cut(row) for row in out[:, ids.shape[1] :].tolist()]
        counts = None if clock is None else _counts(clock, len(answers[0]))
        first = clock.arrivals[0][0] if clock is not None and clock.arrivals else None
        return Timed(tuple(Outcome(tokens, counts=counts) for tokens in answers), seconds, first)

    @property
    def _pad(self) -> int:
        return min(self.stop_ids, default=0)

    def _options(self, task: Task) -> dict[str, Any]:
        from transformers import GenerationConfig

        sampling, stops = task.sampling, sorted(self.stop_ids)
        drawn = bool(sampling.temperature)
        cuts: Mapping[str, Any] = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "min_p": sampling.min_p,
        }
        config = GenerationConfig(
            max_new_tokens=task.max_new_tokens,
            do_sample=drawn,
            eos_token_id=stops or None,
            pad_token_id=self._pad,
            prompt_lookup_num_tokens=self.peer.lookup,
            **(cuts if drawn else {}),
        )
        return {"generation_config": config, **({} if self.assistant is None else {"assistant_model": self.assistant})}

    def _cut(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Up to the first stop token, which counts; what follows is padding."""
        end = next((place for place, token in enumerate(tokens, 1) if token in self.stop_ids), len(tokens))
        return tuple(tokens[:end])


def _padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [prompts, longest] padded on the left, and their mask."""
    longest = max(map(len, prompts))
    ids = [[*[pad] * (longest - len(prompt)), *prompt] for prompt in prompts]
    mask = [[*[0] * (longest - len(prompt)), *[1] * len(prompt)] for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _counts(clock: _Clock, num_tokens: int) -> Counts | None:
    """Forwards after the first and what they gave; None where the tokens came otherwise than they were counted."""
    given = [count for _, count in clock.arrivals]
    if not given or sum(given) < num_tokens:
        return None
    given[-1] -= sum(given) - num_tokens
    return Counts(forwards=len(given) - 1, committed=sum(given[1:]), steps=tuple(given[1:]))
