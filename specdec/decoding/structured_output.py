"""Answers that match a JSON schema or a regular expression: a grammar that masks each row of the target's scores.

The grammar's library, llguidance, is an optional extra, and is imported here only. It reads the vocabulary from the target's
tokenizer; which tokens end an answer is ours: all stop tokens of the request are allowed where the text may end, and nowhere
else, so that a stop token which also writes text (a newline that ends an answer) never leaves an answer unfinished.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specdec.decoding.requests import Request
from specdec.decoding.response_format import JsonObjectFormat, JsonSchemaFormat, RegexFormat, ResponseFormat
from specdec.errors import SpecError, TargetMismatch
from specdec.interfaces.parts import Target, Verifier

EXTRA = "response_format: needs llguidance: pip install 'specdec[structured]'"

SILENT = 0
"""The library's log level: its errors are asked for, and not printed."""


def _library() -> Any:
    """Raises SpecError without the extra."""
    try:
        import llguidance
    except ImportError as error:
        raise SpecError(EXTRA) from error
    return llguidance


def refuse_formats(requests: Sequence[Request], verifier: Verifier) -> None:
    """Raise SpecError for a request with a response format that this verifier would not keep to."""
    if verifier.declaration.accepts_impossible and any(request.response_format is not None for request in requests):
        raise SpecError(
            f"response_format: the lossy verifier '{verifier.name}' accepts tokens that a grammar rules out; "
            "a lossless one, such as 'match', would work"
        )


class Grammars:
    """The grammars of one target's requests. The tokenizer is read once, at the first."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def masks(self, request: Request, *, prompt_length: int, stop_ids: frozenset[int]) -> list[tuple["GrammarMask", ...]]:
        """By sample the logits processor at the beginning of its answer; none without a response format.

        Raises:
            SpecError: For a format that cannot be compiled, for an answer that nothing could end, and without the extra.
            TargetMismatch: For a target whose tokenizer cannot be read.
        """
        response_format = request.response_format
        if response_format is None or isinstance(response_format, Mapping):
            return [()] * request.n
        library = _library()
        if not stop_ids:
            raise SpecError(
                "response_format: no token is known to end an answer, so that a finished text could not end; stop_ids names "
                "some, and ignore_eos leaves the model's own out"
            )
        grammar = _grammar(library, response_format)
        matcher = library.LLMatcher(self._tokenizer, grammar, log_level=SILENT)
        if matcher.is_error():
            raise SpecError(f"{_place(response_format)}: cannot be compiled: {_reason(matcher.get_error())}")
        first = GrammarMask(matcher, self._tokenizer.vocab_size, self._enders(stop_ids), prompt_length)
        return [(first.fork(),) for _ in range(request.n)]

    @property
    def _columns(self) -> int:
        return self._target.facts.vocab_size

    @cached_property
    def _tokenizer(self) -> Any:
        codec = self._target.codec
        text = None if codec is None else codec.tokenizer_json()
        if text is None:
            raise TargetMismatch(
                f"response_format: {self._target.facts.description} has no tokenizer that a grammar can read; a fast "
                "tokenizer of transformers (tokenizer.json) would work"
            )
        specials = [token["id"] for token in json.loads(text).get("added_tokens", ()) if token["special"]]
        size = 1 + max([*codec.vocabulary().values(), *specials, self._columns - 1]) if codec is not None else 0
        try:
            return _library().LLTokenizer(text, n_vocab=size, eos_token=specials[:1])
        except Exception as error:
            raise TargetMismatch(f"response_format: the target's tokenizer cannot be read: {_reason(str(error))}") from error

    def _enders(self, stop_ids: frozenset[int]) -> "_Enders":
        own = {token for token in self._target.facts.stop_ids if 0 <= token < self._columns}
        bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)
        return _Enders(torch.tensor(sorted(stop_ids)), torch.tensor(sorted(own | stop_ids)), bits)


@dataclass(frozen=True, slots=True, eq=False)
class _Enders:
    """Ids of tokens that end an answer, and of those that write no text of it: these and the model's own ends of text.

    bits: [8] the bits of a byte, the lowest first.
    """

    ending: Tensor
    textless: Tensor
    bits: Tensor


class GrammarMask:
    """Forbids every token after which the text could not be completed to a match. One sequence's, or one branch's.

    It is called with each beginning of the answer once, in order; `fork` gives one for another branch.
    """

    def __init__(self, matcher: Any, size: int, enders: _Enders, prompt_length: int) -> None:
        self._matcher = matcher
        self._size = size
        self._enders = enders
        self._consumed = prompt_length

    def fork(self) -> "GrammarMask":
        """One that continues from the same state by itself."""
        return GrammarMask(self._matcher.deep_copy(), self._size, self._enders, self._consumed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: [1, vocab]. Raises SpecError for an answer that the grammar forbids, and where no token is left."""
        self._consume(input_ids[0, self._consumed :].tolist())
        masked = scores.masked_fill(self._forbidden(scores.shape[1]).to(scores.device), float("-inf"))
        if not float(masked.amax()) > float("-inf") and not bool(masked.isnan().any()):
            raise SpecError(
                "response_format: every token that the grammar allows here is forbidden otherwise, by min_new_tokens, "
                "logit_bias, a logits processor or the model itself"
            )
        return masked

    def _consume(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if not self._matcher.consume_token(token):
                raise SpecError(
                    f"response_format: token {token} of the answer is forbidden by the grammar "
                    f"({_reason(self._matcher.get_error()) or 'no text continues with it'})"
                )
            self._consumed += 1

    def _forbidden(self, columns: int) -> Tensor:
        """[columns] bool. The library may know more tokens than the target has; it allows none of those without a text."""
        words = torch.zeros(-(-self._size // 32), dtype=torch.int32)
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), 4 * len(words))
        if self._matcher.is_error():
            raise SpecError(f"response_format: the grammar gives up: {_reason(self._matcher.get_error())}")
        bits = words.view(torch.uint8)[:, None].bitwise_and(self._enders.bits).eq(0).view(-1)[:columns]
        bits[self._enders.textless] = True
        if self._matcher.is_accepting():
            bits[self._enders.ending] = False
        return bits


def _grammar(library: Any, response_format: ResponseFormat) -> str:
    """In the library's own form."""
    matcher: Any = library.LLMatcher
    place = _place(response_format)
    try:
        match response_format:
            case JsonSchemaFormat():
                grammar = matcher.grammar_from_json_schema(json.dumps(response_format.json_schema.schema_))
            case JsonObjectFormat():
                grammar = matcher.grammar_from_json_schema(json.dumps({"type": "object"}))
            case RegexFormat():
                grammar = matcher.grammar_from_regex(response_format.regex)
    except ValueError as error:
        raise SpecError(f"{place}: cannot be compiled: {_reason(str(error))}") from error
    if fault := matcher.validate_grammar(grammar):
        raise SpecError(f"{place}: cannot be compiled: {_reason(fault)}")
    return str(grammar)


_PLACES: Mapping[str, str] = {"json_schema": "response_format.json_schema.schema", "regex": "response_format.regex"}


def _place(response_format: ResponseFormat) -> str:
    return _PLACES.get(response_format.type, "response_format")


def _reason(text: str) -> str:
    """Of the library's message: the line that says what is wrong, else the first."""
    lines = [line.strip() for line in text.strip().split("\n")]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
