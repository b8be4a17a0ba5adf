"""Speculation against plain decoding of the same target, prompt and settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.compose import build
from specdec.config.resolved_spec import Catalog
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import Features
from specdec.interfaces.results import Generation


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part. index: of the emitted token; None stands for an answer that has ended.

    gap: logit of plain decoding's token less that of the other, in a pass over the common tokens.
    """

    index: int
    plain_token: int | None
    other_token: int | None
    gap: float | None

    def words(self) -> str:
        """One line."""
        if self.gap is None:
            return f"one answer ends at token {self.index}, the other continues"
        return (
            f"ids differ first at token {self.index}: plain {self.plain_token}, here {self.other_token}; "
            f"their logits are {self.gap:.2e} apart"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both times and the first difference. speedup: plain seconds per token over ours, prefill included in both.

    same_expected: at temperature 0, and under `match`, whose draws are plain decoding's; other verifiers draw otherwise.
    """

    plain: Generation
    seconds: float
    speedup: float
    difference: Difference | None
    same_expected: bool

    def lines(self) -> list[str]:
        """What the terminal shows."""
        return [
            f"plain decoding: {len(self.plain.tokens)} tokens in {self.plain.seconds:.2f} s · "
            f"{self.plain.tokens_per_second:.1f} tokens/s",
            f"speed-up {self.speedup:.2f}x ({self.plain.seconds:.2f} s -> {self.seconds:.2f} s) · " + self._ids(),
        ]

    def _ids(self) -> str:
        if self.difference is None:
            return "the same ids"
        if not self.same_expected:
            return "other draws of the same distribution, as this verifier makes them above temperature 0"
        return self.difference.words()

    def report(self) -> dict[str, Any]:
        """As JSON."""
        found = self.difference
        return {
            "plain_seconds": self.plain.seconds,
            "plain_tokens": self.plain.tokens,
            "plain_tokens_per_second": self.plain.tokens_per_second,
            "seconds": self.seconds,
            "speedup": self.speedup,
            "same_ids": found is None,
            "same_ids_expected": self.same_expected,
            "first_difference": None
            if found is None
            else {"index": found.index, "plain": found.plain_token, "here": found.other_token, "logit_gap": found.gap},
        }


def compare(
    decoder: Decoder, generation: Generation, catalog: Catalog, prompt: Sequence[int], options: dict[str, Any]
) -> Comparison:
    """Run plain decoding with the target that `decoder` holds, after a short run that warms it up.

    generation: of at least one token.
    """
    plain_spec = {"name": "plain", "drafter": {"use": "none"}, "tree": {"use": "chain"}, "verifier": {"use": "match"}}
    resolved = check(read({**plain_spec, "sampling": _plain(decoder)}, catalog), catalog, target=decoder.target)
    plain_decoder = build(resolved, catalog, target=decoder.target)
    plain_decoder.generate([list(prompt)], max_new_tokens=min(8, options["max_new_tokens"]))
    plain = plain_decoder.generate([list(prompt)], **options)[0]
    rates = [g.seconds / len(g.tokens) for g in (plain, generation)]
    found = first_difference(decoder, list(prompt), plain.tokens, generation.tokens)
    same_expected = not decoder.sampling.temperature or type(decoder.verifier).name == "match"
    return Comparison(plain, generation.seconds, rates[0] / rates[1], found, same_expected)


def _plain(decoder: Decoder) -> dict[str, Any]:
    return decoder.sampling.model_dump(mode="json", exclude_none=True)


def first_difference(decoder: Decoder, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> Difference | None:
    """Where `other` leaves `plain`, with the gap of the two tokens' logits in a teacher-forced pass; None if nowhere."""
    if list(plain) == list(other):
        return None
    shared = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
    if shared in (len(plain), len(other)):
        ends = [tokens[shared] if shared < len(tokens) else None for tokens in (plain, other)]
        return Difference(shared, ends[0], ends[1], None)
    logits = decoder.target.prefill([[*prompt, *plain[:shared]]], Features()).scored[0].logits[-1]
    gap = float(logits[plain[shared]]) - float(logits[other[shared]])
    return Difference(shared, plain[shared], other[shared], gap)
