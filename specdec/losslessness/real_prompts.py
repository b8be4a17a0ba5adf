"""Prompts for real texts, so that a proof needs no data; a spec plain_spec again at another dtype or temperature."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import check, read
from specdec.decoding.prompts import encode
from specdec.errors import SpecError, TargetMismatch
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import Target
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.sampling.keyed_noise import mix

QUESTIONS = (
    "Name three things that a cat and a river have in common.",
    "Write a short letter to a friend who has moved to another town.",
    "A train leaves at 9:40 and arrives at 12:05. How long does it travel?",
    "Explain to a child why the sky is blue.",
    "Give me a recipe for a soup with carrots.",
    "What is the difference between a list and a set in Python?",
    "Tell the story of a lighthouse keeper in five sentences.",
    "List the planets of the solar system, one on each line.",
    "Translate into French: the library opens at eight o'clock.",
    "Why do people dream? Give two theories.",
    "Write a function that reverses a string.",
    "What should one see in a day in Rome?",
    "Repeat the following sentence twice: all work and no play makes Jack a dull boy.",
    "Tom has 12 apples, gives away a third and buys 5. How many has he now?",
    "Describe the taste of coffee to someone who has never had any.",
    "Which animals can live both on land and in water?",
)

WITHOUT_TOKENIZER = 8
"""Tokens of a prompt for a target that has no tokenizer."""


def prompts_for(target: Target, count: int = len(QUESTIONS), *, chat_format: ChatFormat = PLAIN_CHAT) -> list[list[int]]:
    """Ids of so many prompts: by the chat template where there is one, as plain text, or arbitrary ids without a tokenizer.

    Raises SpecError or TargetMismatch for arguments of a chat template where there is none that reads them.
    """
    if target.codec is None and chat_format.arguments:
        raise SpecError("chat_template_kwargs: this target has no tokenizer, and so no chat template")
    return [_prompt(target, number, chat_format) for number in range(count)]


def _prompt(target: Target, number: int, chat_format: ChatFormat) -> list[int]:
    codec, facts = target.codec, target.facts
    if codec is None or (facts.vocab_size < 256 and not chat_format.arguments):
        known = range(min(facts.vocab_size, 1 << 16))
        usable = [token for token in known if token not in facts.stop_ids] or known
        length = WITHOUT_TOKENIZER if facts.max_positions is None else max(1, min(WITHOUT_TOKENIZER, facts.max_positions // 4))
        return [usable[mix(number, place, 41) % len(usable)] for place in range(length)]
    return _encoded(target, QUESTIONS[number % len(QUESTIONS)], chat_format)


def _encoded(target: Target, question: str, chat_format: ChatFormat) -> list[int]:
    try:
        return encode([{"role": "user", "content": question}], target.codec, chat_format)
    except TargetMismatch:
        if chat_format.arguments:
            raise
        return encode(question, target.codec)


def room(target: Target, prompts: Sequence[Sequence[int]], wanted: int) -> int:
    """Tokens that can be answered to every prompt: `wanted`, or what the context leaves."""
    limit = target.facts.max_positions
    return wanted if limit is None else max(0, min(wanted, limit - max(map(len, prompts))))


def replanned(
    resolved: ResolvedSpec, catalog: Catalog, *, dtype: str, sampling: Mapping[str, Any] | None = None
) -> ResolvedSpec:
    """The spec with its target in `dtype`, where that has one, and with these sampling options, where they are given."""
    plain_spec = resolved.plain()
    target = dict(plain_spec["target"])
    if "dtype" in type(resolved.parts[Kind.TARGET].options).model_fields:
        target["dtype"] = dtype
    return check(read({**plain_spec, "target": target, "sampling": dict(sampling or plain_spec["sampling"])}, catalog), catalog)
