"""How many tokens the KV caches may hold together."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.nn.kv_cache import KvCache
from specdec.nn.path_kv_cache import PathCache

SHARE = 1 / 3
"""Of the free memory, what KV caches may fill where nobody says how much. A cache doubles when it grows, and is copied: for a
moment it takes up to three times what is filled."""

MEMORY, CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")

UNKNOWN = 4 * 2**30
"""Bytes that are taken to be free where the machine does not say."""

DEEPEST = 4
"""Objects inside of objects that are looked through for caches."""


def token_bytes(decoder: Decoder) -> int:
    """Bytes that one more token of one sequence takes in all caches of target and drafter; 0: none that is known."""
    batch = decoder.start([Request([0], max_new_tokens=2, ignore_eos=True)])
    caches = {id(cache): cache for part in (batch.state, batch.session) for cache in _caches(part, DEEPEST)}
    decoder.cancel(batch, batch.sequences)
    return sum(shape.slot_bytes for cache in caches.values() for shape in cache.shapes if shape is not None)


def slots(decoders: Sequence[Decoder], kv_bytes: int | None) -> float:
    """Tokens that all sequences may hold together, at the cost of the costliest decoder; infinite where nothing is cached."""
    each = max(token_bytes(decoder) for decoder in decoders)
    if not each:
        return math.inf
    budget = kv_bytes if kv_bytes is not None else int(SHARE * free_bytes(decoders[0].target.facts.device))
    return budget // each


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device: a GPU's own, else the machine's, within the limit of its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [UNKNOWN]
    with suppress(OSError, ValueError, IndexError):
        found = [int(MEMORY.read_text().split("MemAvailable:")[1].split()[0]) * 1024]
    with suppress(OSError, ValueError):
        found.append(int((CONTAINER / "memory.max").read_text()) - int((CONTAINER / "memory.current").read_text()))
    return max(0, min(found))


def _caches(value: Any, depth: int) -> Iterator[KvCache | PathCache]:
    if isinstance(value, KvCache | PathCache):
        yield value
    elif depth and value is not None and not isinstance(value, torch.Tensor | str | int | float):
        for inner in _inside(value):
            yield from _caches(inner, depth - 1)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    named = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in named)]
