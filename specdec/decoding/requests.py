"""What is asked of a decoder, checked before anything runs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, field, fields, replace
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from specdec.decoding.prompt_forms import as_prompt, as_prompts, is_list
from specdec.decoding.prompts import check_text, encode
from specdec.errors import SpecdecError, SpecError, did_you_mean
from specdec.files.validation import checked
from specdec.interfaces.text_codec import ChatFormat, TextCodec
from specdec.sampling.params import SamplingParams

Conversation = Sequence[Mapping[str, str]]

MAX_SHOWN = 80
"""Characters of a prompt that a request shows."""

ControlTokens = Literal["allow", "refuse", "escape"]

SEEDS = 2**63
"""Seeds lie below."""


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


def _listed(values: Any) -> Any:
    """Any collection but a text. Raises ValueError for another value."""
    if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Collection):
        raise ValueError("no list")
    return tuple(values)


WANTED = {
    "prompt": "a prompt",
    "max_new_tokens": "a whole number of at least 1",
    "sampling": "SamplingParams or a mapping",
    "seed": "a whole number of at least 0",
    "stop": "texts or id sequences, none of them empty; single ids belong in stop_ids",
    "stop_ids": "whole numbers",
    "ignore_eos": "True or False",
    "n": "a whole number of at least 1",
    "logprobs": "a whole number of at least 0",
    "processors": "callables (input_ids, scores) -> scores",
    "chat_template_kwargs": "a mapping, such as {'enable_thinking': False}",
    "continue_final_message": "True or False",
    "control_tokens": ", ".join(get_args(ControlTokens)),
    "skip_special_tokens": "True or False",
}
"""What the fields of a request expect, in words and in their order."""

LISTS = ("stop", "stop_ids", "processors")

_StopItem: TypeAlias = (
    Annotated[str, Field(min_length=1, strict=True)]
    | Annotated[tuple[Annotated[int, Field(strict=True)], ...], BeforeValidator(_listed), Field(min_length=1)]
)
_AtLeast1 = Field(ge=1, strict=True)
_Truth = Field(strict=True)
_List = BeforeValidator(_listed)


def _whole(stop: Any) -> Any:
    """A stop text that is Unicode, one text as a list of one."""
    for text in [stop] if isinstance(stop, str) else stop if is_list(stop) else []:
        check_text(text if isinstance(text, str) else "", "stop")
    return (stop,) if isinstance(stop, str) else _listed(stop)


def _explanation(error: ErrorDetails, values: Mapping[str, Any]) -> str:
    """One line for an error of `Request`: the field, what was got, what is expected. values: as given."""
    name, place = str(error["loc"][0]), next((step for step in error["loc"][1:] if isinstance(step, int)), None)
    if name not in WANTED:
        return f"unknown option {name!r}{_meant(name, WANTED)}"
    if name not in values:
        return f"{name}: is required"
    got = values[name]
    if error["type"] in ("less_than", "int_parsing_size"):
        return f"{name}: got a larger number; expected a whole number below 2**63"
    if name in LISTS and place is None:
        return f"{name}: got {got!r}; expected a list, such as [{got!r}]"
    if name in LISTS and place is not None and not isinstance(got, str):
        got = list(got)[place]
    return f"{name}: got {got!r}; expected {WANTED[name]}"


@dataclass(frozen=True, slots=True, repr=False, config=ConfigDict(extra="forbid"))
class Request:
    """One prompt and how it is to be answered.

    prompt: a text (encoded as it is), ids (a list, a tensor or a tokenizer's encoding), or a conversation for the chat
    template, whose contents are texts or lists of parts of type text.
    max_new_tokens: None: to the end of the context. sampling: None: the decoder's; a mapping is read as SamplingParams.
    seed: key of all draws; None: one of the spec's seed and of how many requests the decoder has had, so that the same call
    made again gives another answer, and the same program run again the same one.
    stop: strings, or id sequences; one string may stand alone. stop_ids: beside the model's own, which `ignore_eos` turns off.
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

    prompt: Annotated[str | Sequence[int] | Conversation, PlainValidator(as_prompt)]
    max_new_tokens: Annotated[int | None, _AtLeast1] = 128
    sampling: Annotated[SamplingParams | Mapping[str, Any] | None, PlainValidator(sampling_of)] = None
    seed: Annotated[int | None, Field(ge=0, lt=SEEDS, strict=True)] = None
    stop: Annotated[Sequence[_StopItem], BeforeValidator(_whole)] = ()
    stop_ids: Annotated[Sequence[Annotated[int, Field(strict=True)]], _List] = ()
    ignore_eos: Annotated[bool, _Truth] = False
    n: Annotated[int, _AtLeast1] = 1
    logprobs: Annotated[int | None, Field(ge=0, strict=True)] = None
    processors: Annotated[Sequence[Callable[..., Any]], _List] = ()
    chat_template_kwargs: Mapping[Annotated[str, Field(strict=True)], Any] = field(default_factory=dict)
    continue_final_message: Annotated[bool, _Truth] = False
    control_tokens: ControlTokens = "allow"
    skip_special_tokens: Annotated[bool, _Truth] = True

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, given: Any, handler: Any) -> Any:
        """Errors as ours: the field, what was got, and what its description expects."""
        try:
            return handler(given)
        except ValidationError as error:
            values = {**dict(zip(WANTED, given.args or (), strict=False)), **(given.kwargs or {})}
            raise SpecError(_explanation(error.errors(include_url=False)[0], values)) from error

    def __repr__(self) -> str:
        """The prompt, cut where it is long, and what is asked beyond the defaults."""
        prompt = repr(self.prompt)
        shown = [prompt if len(prompt) <= MAX_SHOWN else f"{prompt[:MAX_SHOWN]}..."]
        for own in fields(self)[1:]:
            default = {} if own.default is MISSING else own.default
            if (value := getattr(self, own.name)) != default:
                shown.append(f"{own.name}={value!r}")
        return f"Request({', '.join(shown)})"

    @property
    def chat_format(self) -> ChatFormat:
        """How a conversation is put to the chat template."""
        return ChatFormat(self.chat_template_kwargs, self.continue_final_message, self.control_tokens == "escape")


def prompt_ids(request: Request, codec: TextCodec | None) -> list[int]:
    """Ids of a request's prompt. Raises SpecError for one that cannot be read as the request asks."""
    refuses = request.control_tokens == "refuse"
    return encode(request.prompt, codec, request.chat_format, refuse_control_tokens=refuses)


FLAT = frozenset(SamplingParams.model_fields) - {"seed"}
"""Keys of `sampling` that may be given by themselves."""

ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "stop_token_ids": "stop_ids",
    "eos_token_id": "stop_ids",
    "logits_processor": "processors",
    "logits_processors": "processors",
    "do_sample": "temperature",
    "num_return_sequences": "n",
    "min_tokens": "min_new_tokens",
    "messages": "prompts",
}
"""What other libraries call an option, and what it is called here."""


def requests_of(prompts: Any, below: SamplingParams | None = None, **options: Any) -> list[Request]:
    """Requests of one prompt or several.

    Args:
        prompts: As for `Decoder.generate`.
        below: The decoder's sampling parameters, over which those that `options` gives by themselves are laid.
        options: Fields of `Request`, and keys of `sampling` by themselves; `seed` may be a list.

    Raises:
        SpecError: For options that do not exist, with the one that may be meant, and for a prompt or an option that is wrong.
    """
    known = {f.name for f in fields(Request)} - {"prompt"}
    if strangers := sorted(set(options) - known - FLAT):
        raise SpecError(f"unknown option {strangers[0]!r}{_meant(strangers[0], known | FLAT)}")
    flat = {name: options.pop(name) for name in sorted(FLAT & options.keys())}
    prompts = [prompts] if isinstance(prompts, Request) else as_prompts(prompts)
    seeds = options.pop("seed", None)
    by_prompt = list(seeds) if is_list(seeds) else [seeds] * len(prompts)
    if len(by_prompt) != len(prompts):
        raise SpecError(f"seed: got {len(by_prompt)} seeds for {len(prompts)} prompts")
    requests = []
    for place, (prompt, seed) in enumerate(zip(prompts, by_prompt, strict=True)):
        given = options if seed is None else {**options, "seed": seed}
        with naming_prompt(place if is_list(seeds) and seed is not None else None):
            request = replace(prompt, **given) if isinstance(prompt, Request) else Request(prompt, **given)
            requests.append(replace(request, sampling=_overlaid(request.sampling or below, flat)) if flat else request)
    return requests


def _overlaid(below: Any, flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sampling options that are given by themselves over those that hold otherwise.

    As in a spec, a truncation without a temperature means temperature 1, where it would be 0.
    """
    kept = below.model_dump(exclude_unset=True, exclude_none=True) if isinstance(below, SamplingParams) else {}
    if not kept.get("temperature") and any(flat.get(name) is not None for name in ("top_k", "top_p", "min_p")):
        kept.pop("temperature", None)
    return {**kept, **flat}


def _meant(name: str, known: Collection[str]) -> str:
    """The option that may be meant, in place of one that does not exist."""
    if name == "do_sample":
        return "; did you mean 'temperature'? 0 is greedy, and anything above draws"
    if name in ELSEWHERE:
        return f"; did you mean '{ELSEWHERE[name]}'?"
    return did_you_mean(name, known, listing="known are")


@contextmanager
def naming_prompt(place: int | None) -> Iterator[None]:
    """Errors of ours say which prompt they are about: its place in the list; None: it is not one prompt's fault."""
    try:
        yield
    except SpecdecError as error:
        if place is None:
            raise
        raise type(error)(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from error
