"""The bitwise proof: in the target's bitwise mode, speculation gives plain decoding's ids, every one of them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.compose import build
from specdec.config.library import Catalog
from specdec.config.resolved_spec import ResolvedSpec
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecdecError, TargetMismatch
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.interfaces.results import Generation
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.levels import Level, LevelResult, Outcome, Progress
from specdec.losslessness.real_prompts import prompts_for, room
from specdec.losslessness.runtime.near_ties import greedy
from specdec.sampling.keyed_noise import mix
from specdec.trees.draft_tree import Draw

OPTION = "bitwise"
"""The key of a target that has such a mode."""

ANSWER_TOKENS = 32
BATCHES = (1, 3)
SAMPLED = {"temperature": 1.0, "top_p": 0.95}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id at which an answer leaves plain decoding's."""

    prompt: int
    batch: int
    temperature: float
    place: int
    plain: int | None
    here: int | None

    def words(self) -> str:
        """One line."""
        return (
            f"prompt {self.prompt}, batch {self.batch}, temperature {self.temperature:g}: id {self.place} is {self.here}, "
            f"plain decoding's is {self.plain}"
        )


@dataclass(slots=True)
class Compared:
    """What was compared. modes: (temperature, batch) -> answers."""

    tokens: int = 0
    answers: int = 0
    modes: dict[tuple[float, int], int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)


def prove_bitwise(
    resolved: ResolvedSpec,
    catalog: Catalog,
    *,
    seconds: float,
    seed: int,
    progress: Progress,
    chat_format: ChatFormat = PLAIN_CHAT,
) -> LevelResult:
    """Run the strategy and plain decoding on one target in bitwise mode, greedy and (under `match`) seeded, also in batches.

    A target without the mode, or one that refuses it on this machine, is inconclusive with its reason.
    """
    began = time.monotonic()
    progress(0.0, "loading the target in bitwise mode")
    try:
        decoder, plain = _decoders(resolved, catalog)
    except SpecdecError as error:
        reason = f"the mode is refused: {' '.join(str(error).split())}"
        return LevelResult(Level.BITWISE, Outcome.INCONCLUSIVE, reason, facts={"refused": reason}, seconds=_since(began))
    prompts = prompts_for(decoder.target, chat_format=chat_format)
    compared = Compared()
    for done, words in _compare(resolved, decoder, plain, prompts, compared, began, seconds, seed):
        progress(min(1.0, done), words)
    return _judged(resolved, decoder, compared, _since(began), seed)


def _since(began: float) -> float:
    return time.monotonic() - began


def _decoders(resolved: ResolvedSpec, catalog: Catalog) -> tuple[Decoder, Decoder]:
    """The strategy and plain decoding, of one target in bitwise mode. Raises SpecdecError where there is no such mode."""
    part = resolved.parts[Kind.TARGET]
    if OPTION not in type(part.options).model_fields:
        raise TargetMismatch(f"target '{part.name}' has no bitwise mode")
    plain_spec = resolved.plain()
    target = {**plain_spec["target"], OPTION: True}
    chosen = check(read({**plain_spec, "target": target}, catalog), catalog)
    decoder = build(chosen, catalog)
    parts = {"drafter": {"use": "none"}, "tree": {"use": "chain"}, "verifier": {"use": "match"}}
    spec = {"name": "plain", **parts, "target": target, "sampling": plain_spec["sampling"]}
    plain = build(check(read(spec, catalog), catalog, target=decoder.target), catalog, target=decoder.target)
    return decoder, plain


def _compare(
    resolved: ResolvedSpec,
    decoder: Decoder,
    plain: Decoder,
    prompts: Sequence[list[int]],
    compared: Compared,
    began: float,
    seconds: float,
    seed: int,
) -> Iterator[tuple[float, str]]:
    """Prompt after prompt, all modes of each, until the time is over; two prompts' modes at least."""
    size = room(decoder.target, prompts, ANSWER_TOKENS)
    modes = list(_modes(resolved, decoder))
    round_size = BATCHES[-1]
    for begin in range(0, len(prompts) - round_size + 1, round_size):
        if size < 1 or (begin and _since(began) > seconds):
            return
        part = prompts[begin : begin + round_size]
        seeds = [mix(seed, 61, begin + n) >> 1 for n in range(len(part))]
        for sampling in modes:
            options = {"max_new_tokens": size, "sampling": sampling}
            expected = _answers(plain, part, seeds, options, 1)
            for batch in BATCHES:
                got = _answers(decoder, part, seeds, options, batch)
                _enter(compared, begin, batch, float(sampling["temperature"]), expected, got)
                yield _since(began) / seconds, f"{compared.tokens} ids compared"
            if compared.differences:
                return


def _modes(resolved: ResolvedSpec, decoder: Decoder) -> Iterator[dict[str, Any]]:
    """Greedy, and seeded draws where the verifier makes plain decoding's: `match`."""
    own = resolved.spec.sampling
    yield greedy(own).model_dump(mode="json", exclude_none=True)
    if type(decoder.verifier).name == "match":
        warm = {**SAMPLED, "temperature": own.temperature, "top_p": own.top_p} if own.temperature else SAMPLED
        drafts = {} if decoder.builder.declaration.draw is Draw.DETERMINISTIC else {"draft": {"temperature": 1.0}}
        yield {key: value for key, value in {**warm, **drafts}.items() if value is not None}


def _answers(
    decoder: Decoder, prompts: Sequence[list[int]], seeds: Sequence[int], options: dict[str, Any], batch: int
) -> list[Generation]:
    found: list[Generation] = []
    for begin in range(0, len(prompts), batch):
        found += decoder.generate(list(prompts[begin : begin + batch]), seed=list(seeds[begin : begin + batch]), **options)
    return found


def _enter(
    compared: Compared, first: int, batch: int, temperature: float, expected: list[Generation], got: list[Generation]
) -> None:
    for number, (plain, here) in enumerate(zip(expected, got, strict=True)):
        compared.answers += 1
        compared.tokens += len(here.tokens)
        mode = (temperature, batch)
        compared.modes[mode] = compared.modes.get(mode, 0) + 1
        if plain.tokens == here.tokens:
            continue
        pairs = zip(plain.tokens, here.tokens, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.tokens), len(here.tokens)))
        ends = [tokens[place] if place < len(tokens) else None for tokens in (plain.tokens, here.tokens)]
        compared.differences.append(Difference(first + number, batch, temperature, place, *ends))


def _judged(resolved: ResolvedSpec, decoder: Decoder, compared: Compared, seconds: float, seed: int) -> LevelResult:
    claims = resolved.parts[Kind.VERIFIER].declares.guarantee is Guarantee.LOSSLESS
    modes = ", ".join(f"T {t:g} batch {b}: {n}" for (t, b), n in sorted(compared.modes.items()))
    lines = [
        ("target", f"{decoder.target.facts.description}, {str(decoder.target.facts.dtype).removeprefix('torch.')}"),
        ("compared", f"{compared.tokens:,} ids in {compared.answers} answers ({modes})"),
    ]
    lines += [("differs", difference.words()) for difference in compared.differences[:5]]
    if type(decoder.verifier).name != "match":
        lines.append(("not compared", "ids above temperature 0: this verifier makes other draws of the same distribution"))
    if not claims:
        outcome, words = Outcome.MEASURED, f"lossy (L0), as it declares: {len(compared.differences)} answers differ"
    elif compared.differences:
        outcome, words = Outcome.REFUTED, compared.differences[0].words()
    elif not compared.tokens:
        outcome, words = Outcome.INCONCLUSIVE, "the context leaves no room for an answer"
    else:
        seeded = type(decoder.verifier).name == "match"
        level = "bitwise (L4)" if seeded else "bitwise at temperature 0 only (L4)"
        outcome, words = Outcome.PROVED, f"{level}: all {compared.tokens:,} ids are plain decoding's"
    facts: dict[str, Any] = {
        "ids": compared.tokens,
        "answers": compared.answers,
        "modes": [{"temperature": t, "batch": b, "answers": n} for (t, b), n in sorted(compared.modes.items())],
        "differences": [d.words() for d in compared.differences],
        "seed": seed,
    }
    return LevelResult(Level.BITWISE, outcome, words, tuple(lines), facts, (), seconds)
