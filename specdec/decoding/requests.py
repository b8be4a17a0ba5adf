"""What is asked of a decoder, checked before anything runs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from specdec.decoding.prompts import check_text, encode, is_list
from specdec.errors import SpecdecError, SpecError
from specdec.files.validation import checked
from specdec.interfaces.text_codec import ChatFormat, TextCodec
from specdec.sampling.logits_warper import LogitsProcessor
from specdec.sampling.params import SamplingParams

Conversation = Sequence[Mapping[str, str]]

ControlTokens = Literal["allow", "refuse", "escape"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how it is to be answered.

    prompt: a text (encoded as it is), ids, or a conversation for the chat template.
    max_new_tokens: None: to the end of the context. sampling: None: the decoder's; a mapping is read as SamplingParams.
    seed: key of all draws; None: one of the spec's seed and of how many requests the decoder has had, so that the same call
    made again gives another answer, and the same program run again the same one.
    stop: strings, or id sequences. stop_ids: beside the model's own, which `ignore_eos` turns off.
    n: samples that share one prefill; sample j > 0 of a seeded request has a key derived from (seed, j).
    logprobs: None, or how many of the likeliest tokens to report beside each emitted one.
    processors: callables (input_ids [1, length], scores [1, vocab]) -> scores, run before temperature. A function is taken to
    be without state; of a class each sequence gets an object, of an object with a method fork() a fork. Any other object may
    be shared by sequences (prompts of a call, samples of a prompt) only while calls do not change it.
    chat_template_kwargs: variables of the chat template, such as enable_thinking. continue_final_message: the assistant's last
    turn of the conversation is continued.
    control_tokens: what becomes of special tokens typed into a prompt: 'allow' reads them as such, 'refuse' raises, 'escape'
    makes them ordinary text. skip_special_tokens: whether the answer's text leaves out its special tokens.
    """

    prompt: str | Sequence[int] | Conversation
    max_new_tokens: int | None = 128
    sampling: SamplingParams | Mapping[str, Any] | None = None
    seed: int | None = None
    stop: Sequence[str | Sequence[int]] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    processors: Sequence[LogitsProcessor] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    control_tokens: ControlTokens = "allow"
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "sampling", sampling_of(self.sampling))

    @property
    def chat_format(self) -> ChatFormat:
        """How a conversation is put to the chat template."""
        return ChatFormat(self.chat_template_kwargs, self.continue_final_message, self.control_tokens == "escape")


def prompt_ids(request: Request, codec: TextCodec | None) -> list[int]:
    """Ids of a request's prompt. Raises SpecError for one that cannot be read as the request asks."""
    refuses = request.control_tokens == "refuse"
    return encode(request.prompt, codec, request.chat_format, refuse_control_tokens=refuses)


def requests_of(prompts: Any, **options: Any) -> list[Request]:
    """Requests of a list of prompts; `seed` may be a list. Raises SpecError for options that do not exist."""
    known = {f.name for f in fields(Request)} - {"prompt"}
    if strangers := sorted(set(options) - known):
        raise SpecError(f"unknown option {strangers[0]!r}; known are {', '.join(sorted(known))}")
    if isinstance(prompts, Request) or not is_list(prompts):
        raise SpecError(f"prompts: got {type(prompts).__name__}; expected a list of texts, id lists, conversations or requests")
    if prompts and isinstance(prompts[0], (int, Mapping)):
        raise SpecError("prompts: got one prompt; expected a list of prompts, such as [prompt]")
    seeds = options.pop("seed", None)
    by_prompt = list(seeds) if is_list(seeds) else [seeds] * len(prompts)
    if len(by_prompt) != len(prompts):
        raise SpecError(f"seed: got {len(by_prompt)} seeds for {len(prompts)} prompts")
    requests = []
    for place, (prompt, seed) in enumerate(zip(prompts, by_prompt, strict=True)):
        given = options if seed is None else {**options, "seed": seed}
        with naming_prompt(place if is_list(seeds) and seed is not None else None):
            requests.append(replace(prompt, **given) if isinstance(prompt, Request) else Request(prompt, **given))
    return requests


@contextmanager
def naming_prompt(place: int | None) -> Iterator[None]:
    """Errors of ours say which prompt they are about: its place in the list; None: it is not one prompt's fault."""
    try:
        yield
    except SpecdecError as error:
        if place is None:
            raise
        raise type(error)(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from error


def check_batch_size(batch_size: Any) -> None:
    """Raise SpecError for a number of sequences that cannot be decoded at once."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise SpecError(f"batch_size: got {batch_size!r}; expected the number of sequences decoded at once, 1 or more")


SEEDS = 2**63
"""Seeds lie below."""


def check_options(options: Any) -> None:
    """Raise SpecError for a field of a Request with what was got and what is expected."""
    for name, least in (("max_new_tokens", 1), ("n", 1), ("logprobs", 0), ("seed", 0)):
        value = getattr(options, name)
        if (value is not None or name == "n") and (type(value) is not int or value < least):
            raise SpecError(f"{name}: got {value!r}; expected a whole number of at least {least}")
    if options.seed is not None and options.seed >= SEEDS:
        raise SpecError("seed: got a larger number; expected a whole number below 2**63")
    for name, fits, wanted in (
        ("stop", _is_stop, "texts or id sequences, none of them empty; single ids belong in stop_ids"),
        ("stop_ids", _is_id, "whole numbers"),
        ("processors", callable, "callables (input_ids, scores) -> scores"),
    ):
        values = getattr(options, name)
        if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Collection):
            raise SpecError(f"{name}: got {values!r}; expected a list, such as [{values!r}]")
        if strangers := [value for value in values if not fits(value)]:
            raise SpecError(f"{name}: got {strangers[0]!r}; expected {wanted}")
    for text in options.stop:
        check_text(text if isinstance(text, str) else "", "stop")
    for name in ("ignore_eos", "continue_final_message", "skip_special_tokens"):
        if not isinstance(value := getattr(options, name), bool):
            raise SpecError(f"{name}: got {value!r}; expected True or False")
    arguments = options.chat_template_kwargs
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise SpecError(f"chat_template_kwargs: got {arguments!r}; expected a mapping, such as {{'enable_thinking': False}}")
    if options.control_tokens not in get_args(ControlTokens):
        raise SpecError(f"control_tokens: got {options.control_tokens!r}; expected {', '.join(get_args(ControlTokens))}")


def sampling_of(given: Any) -> SamplingParams | None:
    """SamplingParams as they are, or those of a mapping. Raises SpecError with everything that is wrong."""
    if given is None or isinstance(given, SamplingParams):
        return given
    if not isinstance(given, Mapping):
        raise SpecError(f"sampling: got {given!r}; expected SamplingParams or a mapping, such as {{'temperature': 1.0}}")
    given = dict(given)
    value, found = checked(SamplingParams, given)
    if found:
        raise SpecError("\n".join(".".join(("sampling", *map(str, path))) + f": {fault}" for path, fault in found.items()))
    return value


def _is_id(value: Any) -> bool:
    return type(value) is int


def _is_stop(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return is_list(value) and len(value) > 0 and all(map(_is_id, value))
