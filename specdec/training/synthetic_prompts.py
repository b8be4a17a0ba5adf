"""Questions for training, made up by the target itself."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.errors import SpecdecError, SpecError, TargetMismatch
from specdec.files.jsonl import append_lines
from specdec.interfaces.results import Generation
from specdec.interfaces.target_identity import target_name
from specdec.interfaces.text_codec import TextCodec
from specdec.sampling.params import SamplingParams
from specdec.training.resumable_jsonl import check_target, resumed

PROBES = ("0", "a", "The", "?")
"""Words of a user that have no first token in common."""

BARREN = 20
"""Batches in a row without a new question after which no more are to be expected."""


def invent(decoder: Decoder, count: int, path: Path, *, max_new_tokens: int, batch: int, seed: int) -> Iterator[int]:
    """Different questions, appended to `path` until it has `count`; yields how many there are after each batch.

    The target writes them at temperature 1, given nothing but the start of a user's turn (arXiv 2406.08464); draw i has seed
    `seed` + i. Unfinished ones, empty ones and repeats are left out. Resumes where an earlier call was stopped. Where a draw
    fails, the others of its batch are kept before the error is raised. Raises TargetMismatch for a target that has no chat
    template, SpecError where nothing new comes any more.
    """
    codec = decoder.target.codec
    if codec is None:
        raise TargetMismatch(f"{decoder.target.facts.description} has no tokenizer, so that it cannot ask anything")
    opening, target = user_opening(codec), target_name(decoder.target.facts.description)
    with resumed(path, _checker(max_new_tokens, seed, target)) as known:
        texts = {record["messages"][0]["content"] for record in known}
        next_seed, barren = (known[-1]["seed"] + 1 if known else seed), 0
        while len(texts) < count:
            seeds = list(range(next_seed, next_seed + batch))
            next_seed += batch
            drawn, failure = _drawn(decoder, opening, max_new_tokens, seeds)
            before, records = len(texts), []
            for text, its_seed in zip(drawn, seeds, strict=False):
                if text and text not in texts and len(texts) < count:
                    texts.add(text)
                    settings = {"max_new_tokens": max_new_tokens, "seed": its_seed, "target": target}
                    records.append({"messages": [{"role": "user", "content": text}], **settings})
            append_lines(path, records, only_ascii=True)
            if failure is not None:
                raise failure
            barren = 0 if len(texts) > before else barren + 1
            if barren == BARREN:
                raise SpecError(
                    f"{path}: has {len(texts)} questions, and {BARREN * batch} more draws gave no other that ends within "
                    f"{max_new_tokens} tokens; ask for fewer, or let them be longer"
                )
            yield len(texts)


def _drawn(
    decoder: Decoder, opening: Sequence[int], max_new_tokens: int, seeds: Sequence[int]
) -> tuple[list[str], SpecdecError | None]:
    """A text for each seed, empty where none ended; and what made one of the draws fail."""
    failure: SpecdecError | None = None
    answers: Sequence[Generation | None]
    try:
        answers = decoder.generate(
            [list(opening) for _ in seeds],
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(temperature=1.0),
            seed=list(seeds),
        )
    except SpecdecError as error:
        failure, answers = error, error.finished
    ended = [answer if answer is not None and answer.finish_reason != "length" else None for answer in answers]
    return ["" if answer is None else (answer.text or "").strip() for answer in ended], failure


def user_opening(codec: TextCodec) -> list[int]:
    """The ids that the chat template writes before the first words of a user. Raises TargetMismatch if there are none."""
    first, *others = (codec.chat([{"role": "user", "content": words}]) for words in PROBES)
    same = [all(len(other) > place and other[place] == token for other in others) for place, token in enumerate(first)]
    length = same.index(False) if False in same else len(first)
    if length == len(first):
        raise TargetMismatch("the chat template does not write what users say, so that it cannot be asked for more of it")
    if not length:
        raise TargetMismatch("the chat template writes nothing before what users say, so that nothing calls for a question")
    return first[:length]


def _checker(max_new_tokens: int, seed: int, target: str) -> Any:
    def check(record: Any, where: str, place: int) -> None:
        (message,) = record["messages"]
        if message["role"] != "user" or not isinstance(message["content"], str):
            raise KeyError("role")
        if record["max_new_tokens"] != max_new_tokens:
            had = record["max_new_tokens"]
            raise SpecError(f"{where}: was drawn with max_new_tokens {had}, not {max_new_tokens}; give another name")
        if record["seed"] < seed + place:
            raise SpecError(f"{where}: was drawn with seed {record['seed']}, before {seed}; give another name")
        check_target(record, where, target)

    return check
