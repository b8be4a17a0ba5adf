"""Features of a target for given conversations, computed once and kept on disk in shards.

A shard is a safetensors file with the conversations end to end: `token_ids`, `spoken`, `lengths`, the post-norm hidden states
`features` and (optional) the inputs of three layers `layers` in bfloat16, and the target's distribution by its highest logits
`top_ids`, `top_logits` (float16) and the log of the whole sum `log_normalizer` (float32).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec.files.atomic import whole_file
from specdec.interfaces.declarations import Features
from specdec.interfaces.results import HiddenStates
from specdec.targets.model_call import ModelCall
from specdec.training.conversations import Conversation

BYTES_PER_VALUE = 2
FEW_VALUES = 16

ROWS_PER_HEAD = 32
"""Rows of logits at once: few enough to stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """What is kept per token. layers: inputs of these decoder layers (EAGLE-3), none for EAGLE-1."""

    top_k: int = 32
    layers: tuple[int, ...] = ()
    tokens_per_forward: int = 4096

    def bytes_per_token(self, hidden_size: int) -> int:
        """Disk space per token."""
        return BYTES_PER_VALUE * hidden_size * (1 + len(self.layers)) + 6 * self.top_k + 9


@torch.inference_mode()
def write_shard(
    call: ModelCall,
    conversations: Sequence[Conversation],
    plan: FeaturePlan,
    path: Path,
    split: Mapping[str, Any] | None = None,
) -> None:
    """Run the target over the conversations and write one shard. The file appears only once it is whole.

    split: what says which conversations of a source are in which shard.
    """
    by_place: dict[int, dict[str, Tensor]] = {}
    for places in length_batches([len(c.token_ids) for c in conversations], plan.tokens_per_forward):
        for place, tensors in zip(places, _forward(call, [conversations[p] for p in places], plan), strict=True):
            by_place[place] = tensors
    columns = [by_place[place] for place in range(len(conversations))]
    shard = {name: torch.cat([column[name] for column in columns]) for name in columns[0]}
    shard["lengths"] = torch.tensor([len(c.token_ids) for c in conversations], dtype=torch.int32)
    metadata = {"plan": json.dumps({**asdict(plan), "target": fingerprint(call), "split": split})}
    with whole_file(path) as scratch:
        save_file(shard, scratch, metadata=metadata)


def length_batches(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Places of sequences, grouped by similar length, so that a padded batch has at most `tokens_per_batch` slots."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        if batch and lengths[place] * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def read_shard(path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The tensors of a shard, memory-mapped; only those named."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}


def shard_fault(path: Path, plan: FeaturePlan, hidden_size: int | None, target: str) -> str | None:
    """Why a shard does not serve this plan and target (its `fingerprint`); None: it does.

    It may hold more layers than an EAGLE-1 head needs.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        size = file.get_slice("features").get_shape()[1]
    made = json.loads(metadata["plan"])
    if plan.layers and list(plan.layers) != made["layers"]:
        return f"it holds the inputs of layers {made['layers']}, wanted are {list(plan.layers)}"
    if made["top_k"] != plan.top_k:
        return f"it holds {made['top_k']} soft labels a token, wanted are {plan.top_k} (data.top_k)"
    if size != hidden_size or made.get("target", target) != target:
        return "it was computed by another target, or in another dtype"
    return None


def other_split(path: Path, split: Mapping[str, Any]) -> list[str]:
    """How a shard's conversations were chosen otherwise than by `split`; nothing for a shard that does not say."""
    with safe_open(path, framework="pt") as file:
        made = json.loads(file.metadata()["plan"]).get("split") or split
    return [f"{key} {made[key]}, not {value}" for key, value in split.items() if made.get(key, value) != value]


def fingerprint(call: ModelCall) -> str:
    """Tells a target's weights from others', by a few values of each tensor."""
    digest = hashlib.sha256()
    for name, parameter in call.model.named_parameters():
        few = parameter.detach().flatten()[:FEW_VALUES].double().cpu()
        digest.update(f"{name}:{tuple(parameter.shape)}:{few.tolist()}".encode())
    return digest.hexdigest()


def _forward(call: ModelCall, batch: Sequence[Conversation], plan: FeaturePlan) -> list[dict[str, Tensor]]:
    ids, hidden = _hidden(call, batch, plan.layers)
    rows = []
    for row, conversation in enumerate(batch):
        length = len(conversation.token_ids)
        features = _last(hidden)[row, :length]
        tensors = {
            "token_ids": ids[row, :length].to(torch.int32),
            "spoken": torch.tensor(conversation.spoken),
            "features": features.to(torch.bfloat16).cpu(),
            **_soft_labels(call, features, conversation.judged, plan.top_k),
        }
        if hidden.layers is not None:
            tensors["layers"] = hidden.layers[row, :length].to(torch.bfloat16).cpu()
        rows.append(tensors)
    return rows


def _hidden(call: ModelCall, batch: Sequence[Conversation], layers: tuple[int, ...]) -> tuple[Tensor, HiddenStates]:
    """Right-padded, so that the model's own causal mask hides the padding from everything that is kept."""
    width = max(len(c.token_ids) for c in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    for row, conversation in enumerate(batch):
        ids[row, : len(conversation.token_ids)] = torch.tensor(conversation.token_ids)
    kept = torch.zeros(1, dtype=torch.long)
    return ids, call(ids.to(call.device), None, None, None, Features(last=True, layers=layers), kept=kept).hidden


def _last(hidden: HiddenStates) -> Tensor:
    if hidden.last is None:
        raise AssertionError("the post-norm features were asked for")
    return hidden.last


@torch.inference_mode()
def hidden_states(call: ModelCall, conversations: Sequence[Conversation], tokens_per_forward: int) -> list[Tensor]:
    """[tokens, hidden] of each conversation, after the final norm, on the CPU."""
    found: dict[int, Tensor] = {}
    for places in length_batches([len(c.token_ids) for c in conversations], tokens_per_forward):
        states = _last(_hidden(call, [conversations[place] for place in places], ())[1])
        found |= {place: states[row, : len(conversations[place].token_ids)].cpu() for row, place in enumerate(places)}
    return [found[place].clone() for place in range(len(conversations))]


def _soft_labels(call: ModelCall, features: Tensor, judged: Sequence[bool], top_k: int) -> dict[str, Tensor]:
    """Where the next token is the assistant's; zeros elsewhere, where nothing is learnt."""
    places = torch.tensor(judged).nonzero()[:, 0]
    top_ids = torch.zeros((len(judged), top_k), dtype=torch.int32)
    top_logits = torch.zeros((len(judged), top_k), dtype=torch.float16)
    log_normalizer = torch.zeros(len(judged))
    for some in torch.split(places, ROWS_PER_HEAD):
        logits = call.head(features[some.to(features.device)])
        top = logits.topk(top_k)
        top_ids[some] = top.indices.to(torch.int32).cpu()
        top_logits[some] = top.values.to(torch.float16).cpu()
        log_normalizer[some] = logits.float().logsumexp(-1).cpu()
    return {"top_ids": top_ids, "top_logits": top_logits, "log_normalizer": log_normalizer}
