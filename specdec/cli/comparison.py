"""Speculation against plain decoding of the same target, prompt and settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import Features, Guarantee
from specdec.interfaces.results import Generation
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.rng import perturbed


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part. index: of the emitted token; None stands for an answer that has ended.

    gap: by how much plain decoding's token leads the other in what the target compares to pick one, in a pass over the common
    tokens: processed logits at temperature 0, log p with the draw's noise above. None where one of them was not in the running.
    compared: what that is, in words.
    """

    index: int
    plain_token: int | None
    other_token: int | None
    gap: float | None
    compared: str

    def words(self) -> str:
        """One line."""
        if self.plain_token is None or self.other_token is None:
            return f"one answer ends at token {self.index}, the other continues"
        apart = f"one has no probability in a pass over the common tokens: no {self.compared} to compare"
        if self.gap is not None:
            apart = f"their {self.compared} are {self.gap:.2e} apart"
        return f"ids differ first at token {self.index}: plain {self.plain_token}, here {self.other_token}; {apart}"

    def report(self) -> dict[str, Any]:
        """As JSON."""
        pair = {"plain": self.plain_token, "here": self.other_token}
        return {"index": self.index, **pair, "gap": self.gap, "compared": self.compared}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both times and the first difference. speedup: plain seconds per token over ours, prefill included in both.

    same_expected: of a lossless strategy at temperature 0, and under `match`, whose draws are plain decoding's; other verifiers
    draw otherwise. lossy: the answer need not follow the target's distribution at all.
    """

    plain: Generation
    seconds: float
    speedup: float
    difference: Difference | None
    same_expected: bool
    lossy: bool

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
        if self.lossy:
            return f"other ids from token {self.difference.index} on: the strategy is lossy, not the target's distribution"
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
            "first_difference": None if found is None else found.report(),
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
    found = first_difference(decoder, list(prompt), plain.tokens, generation.tokens, seed=generation.seed)
    lossy = generation.guarantee is Guarantee.LOSSY
    same_draws = not decoder.sampling.temperature or type(decoder.verifier).name == "match"
    return Comparison(plain, generation.seconds, rates[0] / rates[1], found, same_draws and not lossy, lossy)


def _plain(decoder: Decoder) -> dict[str, Any]:
    return decoder.sampling.model_dump(mode="json", exclude_none=True)


def first_difference(
    decoder: Decoder, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], *, seed: int
) -> Difference | None:
    """Where `other` leaves `plain`, and by how much the one token leads the other; None if nowhere. seed: the request's key."""
    if list(plain) == list(other):
        return None
    shared = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
    ends = [tokens[shared] if shared < len(tokens) else None for tokens in (plain, other)]
    greedy = not decoder.sampling.temperature
    gap = None if ends[0] is None or ends[1] is None else _gap(decoder, [*prompt, *plain[:shared]], len(prompt), ends, seed)
    return Difference(shared, ends[0], ends[1], gap, "logits" if greedy else "perturbed log-probabilities")


def _gap(decoder: Decoder, tokens: list[int], prompt_length: int, pair: Sequence[Any], seed: int) -> float | None:
    """What the target compares to pick the next token: of the first of the pair less of the second; None without both."""
    logits = decoder.target.prefill([tokens], Features()).scored[0].logits[-1]
    warper = LogitsWarper(decoder.sampling, prompt_length=prompt_length, stop_ids=decoder.target.facts.stop_ids)
    if not decoder.sampling.temperature:
        row = warper.processed(logits, tokens) if warper.depends_on_path else logits
        values = [float(row[token]) for token in pair]
    else:
        dist = warper.row(logits, tokens)
        keys = dict(zip(dist.ids.tolist(), perturbed(seed, dist.ids, dist.probs, len(tokens)).tolist(), strict=True))
        values = [keys.get(token, -math.inf) for token in pair]
    return values[0] - values[1] if all(map(math.isfinite, values)) else None
