"""What is asked of a decoder, checked before anything runs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, field, fields, replace
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from specdec.decoding.prompt_forms import as_prompt, as_prompts, is_list
from specdec.decoding.prompts import check_text, encode
from specdec.decoding.request_errors import WANTED, ControlTokens, explanation, meant
from specdec.decoding.response_format import ResponseFormat, response_format_of
from specdec.errors import SpecdecError, SpecError
from specdec.files.validation import checked
from specdec.interfaces.results import CertificateStamp
from specdec.interfaces.text_codec import ChatFormat, TextCodec
from specdec.sampling.params import SamplingParams

Conversation = Sequence[Mapping[str, str]]

MAX_SHOWN = 80
"""Characters of a prompt that a request shows."""

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
    response_format: what the answer must match, as OpenAI's servers take it: {'type': 'json_schema', 'json_schema': {'schema':
    {...}}}, {'type': 'json_object'}, or {'type': 'regex', 'regex': '...'}. Needs the extra 'structured'.
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
    response_format: Annotated[ResponseFormat | Mapping[str, Any] | None, PlainValidator(response_format_of)] = None

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, given: Any, handler: Any) -> Any:
        """Errors as ours: the field, what was got, and what its description expects."""
        try:
            return handler(given)
        except ValidationError as error:
            values = {**dict(zip(WANTED, given.args or (), strict=False)), **(given.kwargs or {})}
            raise SpecError(explanation(error.errors(include_url=False)[0], values)) from error

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
        raise SpecError(f"unknown option {strangers[0]!r}{meant(strangers[0], known | FLAT)}")
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


def refuse_uncovered(requests: Sequence[Request], own: SamplingParams, certificate: CertificateStamp | None) -> None:
    """Raise SpecError for a request that the certificate of a lossy decoder does not cover. own: the decoder's sampling."""
    if certificate is None or certificate.lossless:
        return
    covered = own.model_dump(exclude={"seed"})
    for request in requests:
        asked = request.sampling.model_dump(exclude={"seed"}) if isinstance(request.sampling, SamplingParams) else covered
        other = next((name for name, value in asked.items() if value != covered[name]), None)
        if other is not None or request.processors or request.response_format is not None:
            constraint = "logits processors" if request.processors else "a response_format"
            what = constraint if other is None else f"sampling.{other} = {asked[other]!r}, not {covered[other]!r}"
            raise SpecError(f"the certificate of this lossy decoder covers its own sampling only; the request asks for {what}")


@contextmanager
def naming_prompt(place: int | None) -> Iterator[None]:
    """Errors of ours say which prompt they are about: its place in the list; None: it is not one prompt's fault."""
    try:
        yield
    except SpecdecError as error:
        if place is None:
            raise
        raise type(error)(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from error
