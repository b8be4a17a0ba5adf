"""What the assistant said in a rendered conversation: the tokens that a loss is taken over.

A template's `{% generation %}` marks say it. Without them a message is found by rendering the conversation once more with
another text in its place: what differs is the message, and what stays is the template's, thoughts that it writes by itself
included. A turn whose words the template changes cannot be told and is left out; the last turn is then put behind the prompt
that it answers, as it was said.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.targets.chat_template import ChatTemplate
from specdec.targets.text_codec import special_tokens

PLACEHOLDER = "specdec0placeholder"
"""Stands for a message: no template, and hardly a person, writes it."""

CHANGED = "the chat template does not write its words as they are"
UNMARKED = "its words are not between the template's generation marks"
UNSPLIT = "its words share tokens with what the template writes"

Message = Mapping[str, str]
Rendering = Callable[[Sequence[Message]], str]


@dataclass(frozen=True, slots=True)
class MaskedText:
    """Token ids, and for each whether the assistant said it.

    Attributes:
        left_out: Turns of the assistant that are not in the mask: (number of the message, why).
    """

    token_ids: tuple[int, ...]
    spoken: tuple[bool, ...]
    left_out: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """Characters of a message; closing: those of the special token that ends the turn, if there is one."""

    begin: int
    end: int
    closing: tuple[int, int] | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """Where it begins and ends."""
        return (self.begin, self.end, *(self.closing or ()))


class LossMask:
    """Tells what the assistant said, by a tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, chat_format: ChatFormat = PLAIN_CHAT) -> None:
        self._tokenizer = tokenizer
        self._format = chat_format
        self._template = ChatTemplate(tokenizer)
        self._special = sorted(special_tokens(tokenizer).values(), key=len, reverse=True)
        self._end = tokenizer.eos_token or ""

    def of(self, messages: Sequence[Message]) -> MaskedText:
        """Ids by the chat template with a mask of what the assistant said, its end-of-turn tokens included.

        Raises:
            SpecError: For a conversation that the template refuses.
        """
        if self._template.marks_answers and self._tokenizer.is_fast:
            return self._by_marks(messages)
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        render: Rendering = self._text
        spans = self._spans(messages, turns, render)
        changed_last = bool(turns) and turns[-1] == len(messages) - 1 and spans[turns[-1]] is None
        if changed_last and (answering := self._answering(messages[:-1])) is not None:
            render, spans = answering, self._spans(messages, turns, answering)
        return self._masked(render(messages), messages, spans)

    def _apply(self, messages: Sequence[Message], **options: Any) -> Any:
        try:
            return self._template.apply(messages, self._format, **options)
        except SpecdecError:
            raise
        except Exception as error:  # whatever the template's own code raises
            raise SpecError(f"the chat template refuses the conversation: {error}") from error

    def _text(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return str(self._apply(messages, add_generation_prompt=prompt, tokenize=False, return_dict=False))

    def _by_marks(self, messages: Sequence[Message]) -> MaskedText:
        encoded = self._apply(messages, add_generation_prompt=False, return_assistant_tokens_mask=True)
        ids, spoken = list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]]
        said = [token for token, is_spoken in zip(ids, spoken, strict=True) if is_spoken]
        answers = [(n, message["content"]) for n, message in enumerate(messages) if message["role"] == "assistant"]
        left_out = tuple((number, UNMARKED) for number, content in answers if not self._holds(said, content))
        return MaskedText(tuple(ids), tuple(spoken), left_out)

    def _answering(self, before: Sequence[Message]) -> Rendering | None:
        """A last message behind the prompt that it answers; None for a template that writes no such prompt."""
        if not before or self._text(before, prompt=True) == self._text(before):
            return None
        closing = self._closing(self._text, before)
        return lambda messages: self._text(messages[:-1], prompt=True) + messages[-1]["content"] + closing

    def _closing(self, render: Rendering, before: Sequence[Message]) -> str:
        """The special token that ends an answer to `before`, with the space in front of it; nothing if there is none."""
        try:
            behind = render([*before, {"role": "assistant", "content": PLACEHOLDER}]).partition(PLACEHOLDER)[2]
        except SpecError:
            return ""
        return _first_special(behind, self._special)

    def _spans(self, messages: Sequence[Message], turns: Sequence[int], render: Rendering) -> dict[int, _Span | None]:
        text = render(messages)
        spans = {turn: _span(text, messages, turn, render) for turn in turns}
        for turn, span in spans.items():
            if span is None:
                continue
            closing = self._closing(render, messages[:turn]) or _first_special(text[span.end :], [self._end])
            if closing and text.startswith(closing, span.end):
                space = len(closing) - len(closing.lstrip())
                spans[turn] = replace(span, closing=(span.end + space, span.end + len(closing)))
        return spans

    def _masked(self, text: str, messages: Sequence[Message], spans: Mapping[int, _Span | None]) -> MaskedText:
        found = [span for span in spans.values() if span is not None]
        ids, offsets = self._tokens(text, {place for span in found for place in span.places})
        spoken = [False] * len(ids)
        left_out = []
        for turn, span in spans.items():
            if span is None:
                left_out.append((turn, CHANGED))
                continue
            said = [place for place, (begin, end) in enumerate(offsets) if _is_inside(text, begin, end, span)]
            if not self._holds([ids[place] for place in said], messages[turn]["content"]):
                left_out.append((turn, UNSPLIT))
                continue
            for place in [*said, *(place for place, (begin, end) in enumerate(offsets) if _closes(begin, end, span))]:
                spoken[place] = True
        return MaskedText(tuple(ids), tuple(spoken), tuple(left_out))

    def _tokens(self, text: str, places: Collection[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the characters that it covers: those between two of `places` where the tokenizer does not say."""
        if self._tokenizer.is_fast:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return list(encoded["input_ids"]), list(encoded["offset_mapping"])
        ids = self._ids(text)
        cuts = [(0, 0)]
        for place in sorted(places):
            for at in (place, len(text[:place].rstrip())):
                before = self._ids(text[:at])
                if at >= cuts[-1][0] and ids[: len(before)] == before:
                    cuts.append((at, len(before)))
                    break
        pieces = pairwise([*cuts, (len(text), len(ids))])
        return ids, [(begin, end) for (begin, first), (end, last) in pieces for _ in range(last - first)]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _holds(self, ids: Sequence[int], content: str) -> bool:
        """Whether tokens decode to a text with these words in it, spaces aside."""
        said = self._decoded(ids)
        if _without_spaces(content) in said:
            return True
        return self._decoded(self._ids(content)) in said

    def _decoded(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return _without_spaces(str(text))


def _span(text: str, messages: Sequence[Message], turn: int, render: Rendering) -> _Span | None:
    """Where a turn's words are in the rendered conversation, or None where they are not there as they are."""
    words = messages[turn]["content"].strip()
    other = [*messages[:turn], {**messages[turn], "content": PLACEHOLDER}, *messages[turn + 1 :]]
    before, found, behind = render(other).partition(PLACEHOLDER)
    if not found or PLACEHOLDER in behind:
        return None
    begin = _common_start(text, before)
    end = len(text) - _common_end(text[begin:], behind)
    if begin == len(before) and len(text) - end == len(behind) and text[begin:end].strip() == words:
        return _Span(begin, end)
    at = text.find(words, max(0, end - len(words))) if words else -1
    return _Span(at, at + len(words)) if 0 <= at <= begin else None


def _first_special(text: str, special: Sequence[str]) -> str:
    """The special token that a text begins with, and the space in front of it; nothing if it begins with words."""
    space = text[: len(text) - len(text.lstrip())]
    return next((space + name for name in special if name and text.startswith(space + name)), "")


def _common_start(first: str, second: str) -> int:
    """Characters that two texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first.startswith(second[:middle]) else (low, middle - 1)
    return low


def _common_end(first: str, second: str) -> int:
    """Characters that two texts end with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first.endswith(second[-middle:]) else (low, middle - 1)
    return low


def _is_inside(text: str, begin: int, end: int, span: _Span) -> bool:
    """Whether a token is of the span; a space that the template writes may be in front of its first word."""
    word = end - len(text[begin:end].lstrip())
    return begin < end <= span.end and (word if word < end else begin) >= span.begin


def _closes(begin: int, end: int, span: _Span) -> bool:
    """Whether a token is the one that ends the turn; it may take in the space around it."""
    return span.closing is not None and begin <= span.closing[0] and span.closing[1] <= end


def _without_spaces(text: str) -> str:
    return "".join(text.split())
