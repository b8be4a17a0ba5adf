"""The feature shards of a run: which there must be, which there are, what the rest would cost, and the next one.

A source's conversations are split by question into a part to learn from (`NAME-0000.safetensors`, ...) and a held-out part
(`NAME-held-0000.safetensors`); both follow from the source, the seed and the tokens per shard alone.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from torch import Tensor

from specdec.errors import SpecdecWarning, SpecError
from specdec.files.locks import exclusive
from specdec.files.paths import is_file
from specdec.interfaces.text_codec import ChatFormat
from specdec.targets.capability import text_config
from specdec.targets.context import Context, context_of
from specdec.targets.model_call import ModelCall
from specdec.training.conversations import Conversation, encode, is_held_out, numbered_messages, shuffled
from specdec.training.dataset import spoken_counts
from specdec.training.features import FeaturePlan, fingerprint, other_split, read_shard, shard_fault, write_shard
from specdec.training.loss_mask import LossMask
from specdec.training.spec import DataSpec, SourceSpec


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard, whether it is there or not. split: what says which conversations of its source are in it."""

    path: Path
    conversations: tuple[Conversation, ...]
    split: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Of all its conversations."""
        return sum(len(c.token_ids) for c in self.conversations)

    @property
    def token_ids(self) -> list[int]:
        """Of all its conversations, end to end."""
        return [token for c in self.conversations for token in c.token_ids]

    @property
    def spoken(self) -> list[bool]:
        """Of all its conversations, end to end."""
        return [is_spoken for c in self.conversations for is_spoken in c.spoken]


@dataclass(frozen=True, slots=True)
class Cost:
    """What is still to be computed. seconds: None before any shard was written."""

    tokens: int
    gigabytes: float
    seconds: float | None


def _conversations(
    name: str, source: SourceSpec, mask: LossMask, data: DataSpec, room: int
) -> tuple[list[Conversation], list[str]]:
    """Those of one source, and what of it is left out, by line and reason.

    Raises SpecError for a bad line, and for a source without a word of the assistant.
    """
    found, left_out = [], []
    numbered = numbered_messages(source.path, temperature=source.temperature, chat_template_kwargs=data.chat_template_kwargs)
    for where, messages in numbered:
        try:
            conversation = encode(messages, mask, room)
        except SpecError as error:
            raise SpecError(f"{where}: {error}") from error
        left_out += [f"{where}: turn {turn}: {reason}" for turn, reason in conversation.left_out]
        if not conversation.teaches_nothing:
            found.append(conversation)
    if not found and left_out:
        raise SpecError(f"data.sources.{name}: no answer in {source.path} can be learnt from, such as {left_out[0]}")
    if not found:
        of = "" if source.temperature is None else f" with temperature {source.temperature}"
        raise SpecError(f"data.sources.{name}: {source.path} has no conversation{of}")
    if not any(any(conversation.spoken) for conversation in found):
        raise SpecError(
            f"data.sources.{name}.max_tokens: {source.max_tokens} cuts every conversation of {source.path} before the first "
            "word of the assistant; a larger one would work"
        )
    return found, left_out


def _split(source: SourceSpec, data: DataSpec, seed: int) -> dict[str, Any]:
    """As JSON data, by the keys of a training spec."""
    keys = {"held_out_share", "held_out_at_most", "tokens_per_shard", "chat_template_kwargs"}
    whole = data.model_dump(mode="json", include=keys)
    own = source.model_dump(mode="json", include={"max_tokens", "temperature"})
    return {"data_seed": seed, "path": str(source.path.absolute()), **own, **whole}


def _room(source: SourceSpec, context: Context) -> int:
    """Tokens at which conversations are cut."""
    return source.max_tokens if context.max_positions is None else min(source.max_tokens, context.max_positions)


def _warn_of_context(name: str, source: SourceSpec, found: Sequence[Conversation], context: Context) -> None:
    room = _room(source, context)
    if room < source.max_tokens and any(len(conversation.token_ids) == room for conversation in found):
        why = f" ({context.capped_because})" if context.capped_because else ""
        warnings.warn(
            f"data.sources.{name}.max_tokens: {source.max_tokens} is cut to the target's context of {room} tokens{why}",
            SpecdecWarning,
            stacklevel=4,
        )


class FeatureStore:
    """The shards in one folder. `call` is only used to write.

    Attributes:
        left_out: By source, the turns of the assistant that cannot be told from what the chat template writes, and why.
    """

    def __init__(self, folder: Path, data: DataSpec, tokenizer: Any, call: ModelCall, plan: FeaturePlan, seed: int) -> None:
        self.folder, self.data, self._call, self._plan = folder, data, call, plan
        self._target = fingerprint(call)
        self._tokens_per_second: float | None = None
        self._planned: dict[str, list[PlannedShard]] = {}
        self.left_out: dict[str, list[str]] = {}
        context = context_of(text_config(call.config), None).of_one_set()
        mask = LossMask(tokenizer, ChatFormat(data.chat_template_kwargs))
        for name, source in data.sources.items():
            found, left_out = _conversations(name, source, mask, data, _room(source, context))
            _warn_of_context(name, source, found, context)
            self.left_out |= {name: left_out} if left_out else {}
            conversations, split = shuffled(found, seed), _split(source, data, seed)
            held = [c for c in conversations if is_held_out(c.key, data.held_out_share)]
            rest = [c for c in conversations if not is_held_out(c.key, data.held_out_share)]
            self._planned[name] = self._shards(name, rest, split)
            self._planned[f"{name}-held"] = self._shards(f"{name}-held", held[: data.held_out_at_most], split)
        self._check_split()

    def _check_split(self) -> None:
        """Raise SpecError where nothing is held out to validate on, or nothing is left to learn from."""
        name = self.data.validate_on
        held = [c for shard in self._planned[f"{name}-held"] for c in shard.conversations]
        if not held:
            raise SpecError(f"no conversation of '{name}' is held out; more of them or a larger data.held_out_share would work")
        if not any(any(c.spoken) for c in held):
            raise SpecError(
                f"data.sources.{name}.max_tokens: {self.data.sources[name].max_tokens} cuts all {len(held)} held-out "
                "conversations before the first word of the assistant; a larger one would work"
            )
        if not any(self._planned[source] for source in self.data.sources):
            raise SpecError(
                "all conversations are held out, and none is left to learn from; more of them or a smaller "
                "data.held_out_share would work"
            )

    def _shards(self, part: str, conversations: Sequence[Conversation], split: Mapping[str, Any]) -> list[PlannedShard]:
        groups: list[list[Conversation]] = []
        size = self.data.tokens_per_shard
        for conversation in conversations:
            if not groups or size >= self.data.tokens_per_shard:
                groups.append([])
                size = 0
            groups[-1].append(conversation)
            size += len(conversation.token_ids)
        return [PlannedShard(self.folder / f"{part}-{i:04d}.safetensors", tuple(some), split) for i, some in enumerate(groups)]

    def present(self, part: str) -> list[Path]:
        """The finished shards of a part, in order."""
        return [shard.path for shard in self._of(part) if self._is_there(shard)]

    @property
    def ready_tokens(self) -> int:
        """Of the finished shards to learn from, each counted once."""
        return sum(shard.tokens for name in self.data.sources for shard in self._of(name) if self._is_there(shard))

    def training_shards(self) -> list[Path]:
        """The finished shards to learn from; those of a source that is to be repeated occur as often."""
        return [path for name, source in self.data.sources.items() for path in self.present(name) * source.repeat]

    def cost(self, parts: Sequence[str]) -> Cost:
        """Of what is missing of these parts."""
        tokens = sum(shard.tokens for shard in self._missing(parts))
        size = tokens * self._plan.bytes_per_token(self._call.hidden_size or 0) / 1e9
        return Cost(tokens, size, None if self._tokens_per_second is None else tokens / self._tokens_per_second)

    def write(self, parts: Sequence[str], tokens: int | None = None) -> int:
        """Write missing shards of these parts, in order, until `tokens` tokens are written; None: all. Returns the tokens.

        Raises SpecError where another process is writing features into the folder.
        """
        missing, written = self._missing(parts), 0
        with exclusive(self.folder, folder=True) if missing else nullcontext():
            for shard in missing:
                if tokens is not None and written >= tokens:
                    break
                started = time.monotonic()
                write_shard(self._call, shard.conversations, self._plan, shard.path, shard.split)
                self._tokens_per_second = shard.tokens / (time.monotonic() - started)
                written += shard.tokens
        return written

    def grow(self, epoch: int) -> None:
        """Write features up to what an epoch is to have, so that to ask again adds nothing."""
        first, parts = self.data.first_tokens, list(self.data.sources)
        if first is None:
            self.write(parts)
        elif (missing := first + epoch * self.data.tokens_per_epoch - self.ready_tokens) > 0:
            self.write(parts, missing)

    def counts(self, vocab_size: int) -> Tensor:
        """[vocab] how often the assistant says each token in all that is to be learnt from, repeats counted."""
        repeated: Mapping[str, int] = {name: source.repeat for name, source in self.data.sources.items()}
        parts = [(self._planned[name], repeat) for name, repeat in repeated.items()]
        counted = [spoken_counts((c for s in shards for c in s.conversations), vocab_size) * n for shards, n in parts]
        return sum(counted[1:], start=counted[0])

    def _missing(self, parts: Sequence[str]) -> list[PlannedShard]:
        return [shard for part in parts for shard in self._of(part) if not self._is_there(shard)]

    def _is_there(self, shard: PlannedShard) -> bool:
        """Whether the file holds these very conversations; what belongs to a source that has changed is computed anew.

        Raises SpecError for what is another run's and is not overwritten: the right conversations with features of another plan
        or target, and others because that run chooses them otherwise.
        """
        if not is_file(shard.path):
            return False
        try:
            there = read_shard(shard.path, ("token_ids", "spoken"))
            if there["token_ids"].tolist() != shard.token_ids or there["spoken"].tolist() != shard.spoken:
                others = other_split(shard.path, shard.split)
                return False if not others else self._refuse(shard.path, f"it is of a run with {'; '.join(others)}")
            fault = shard_fault(shard.path, self._plan, self._call.hidden_size, self._target)
        except SafetensorError:
            return False
        return True if fault is None else self._refuse(shard.path, fault)

    def _refuse(self, path: Path, fault: str) -> NoReturn:
        raise SpecError(f"{path} does not serve this run: {fault}; another folder of features would work")

    def _of(self, part: str) -> list[PlannedShard]:
        if part not in self._planned:
            raise SpecError(f"no part '{part}' among the data; there are {', '.join(self._planned)}")
        return self._planned[part]
