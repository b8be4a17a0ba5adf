"""Prompts for real texts, so that a proof needs no data; a spec plain_spec again at another dtype or temperature."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import check, read
from specdec.decoding.prompts import encode
from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Kind
from specdec.interfaces.parts import Target
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


def prompts_for(target: Target, count: int = len(QUESTIONS)) -> list[list[int]]:
    """Ids of so many prompts: by the chat template where there is one, as plain text, or arbitrary ids without a tokenizer."""
    return [_prompt(target, number) for number in range(count)]


def _prompt(target: Target, number: int) -> list[int]:
    codec, facts = target.codec, target.facts
    if codec is None or facts.vocab_size < 256:
        known = range(min(facts.vocab_size, 1 << 16))
        usable = [token for token in known if token not in facts.stop_ids] or known
        length = WITHOUT_TOKENIZER if facts.max_positions is None else max(1, min(WITHOUT_TOKENIZER, facts.max_positions // 4))
        return [usable[mix(number, place, 41) % len(usable)] for place in range(length)]
    return _encoded(target, QUESTIONS[number % len(QUESTIONS)])


def _encoded(target: Target, question: str) -> list[int]:

    try:
        return encode([{"role": "user", "content": question}], target.codec)
    except TargetMismatch:
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
