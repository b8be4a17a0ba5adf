"""A check at load where the model may change its ways: near its original length, its windows and the end of its context.

A few tokens stand there without those before them, so that a forward at position 100,000 costs as little as one at 0.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.nn.kv_cache import KvCache
from specdec.nn.tree_mask import chain_mask
from specdec.targets.capability import mask_argument, text_config
from specdec.targets.context import rope_settings
from specdec.targets.model_call import FORWARD_FAULTS
from specdec.targets.probing import TOLERANCE, ProbedRuntime, example_tokens, logit_distance

FIRST, COUNT = 3, 6
"""Tokens of the first forward, and of both."""


def position_fault(runtime: ProbedRuntime) -> str | None:
    """What went wrong at which position; None where tokens have the logits there that they have alone."""
    if runtime.limits.no_trees_because is not None or not runtime.call.takes_positions:
        return None
    for place in _places(runtime):
        try:
            distance = _distance(runtime, place)
        except torch.OutOfMemoryError:
            raise
        except FORWARD_FAULTS as error:
            return f"at position {place} its forward fails with {type(error).__name__}: {error}"
        if not distance <= TOLERANCE[runtime.call.dtype]:
            return (
                f"near position {place + FIRST} a token's logits depend on what else is in its forward: they differ by "
                f"{distance:.1g} of their spread"
            )
    return None


def _places(runtime: ProbedRuntime) -> Iterator[int]:
    """First positions of the tokens that are tried: their middle lies where something may change."""
    text, limit = text_config(runtime.call.config), runtime.limits.max_positions
    settings = [text.to_dict(), *rope_settings(text)]
    named = {some.get("original_max_position_embeddings") for some in settings} | set(runtime.masks.windows.values())
    turns = {value for value in named if isinstance(value, int) and value >= FIRST}
    starts = (
        {turn - FIRST for turn in turns} if limit is None else {min(turn, limit - FIRST) - FIRST for turn in {*turns, limit}}
    )
    yield from sorted(start for start in starts if start >= 0)


def _distance(runtime: ProbedRuntime, place: int) -> float:
    """Between tokens alone, and in two forwards beside a sequence that begins at 0.

    In half precision, where one near-tie of a mixture's router moves one token far, the median of each sequence and forward.
    """
    tokens = [example_tokens(COUNT, runtime.call.vocab_size, stride) for stride in (3, 11)]
    ids = torch.tensor(tokens, device=runtime.call.device)
    steps = torch.arange(COUNT, device=runtime.call.device)
    positions = torch.stack((place + steps, steps))
    with torch.no_grad():
        alone = [
            runtime.call.model(input_ids=ids[row][None], position_ids=positions[row][None], use_cache=False).logits[0]
            for row in range(2)
        ]
    together = _in_two_forwards(runtime, ids, positions)
    of_group = max if runtime.call.dtype in (torch.float32, torch.float64) else median
    return max(
        of_group([logit_distance(alone[row][at], together[row, at]) for at in range(begin, begin + FIRST)])
        for row in range(2)
        for begin in (0, FIRST)
    )


def _in_two_forwards(runtime: ProbedRuntime, ids: Tensor, positions: Tensor) -> Tensor:
    """[rows, tokens, vocab]. Slots are counted from 0 whatever the positions are."""
    from specdec.targets.cache_adapter import slot_cache

    call, kv = runtime.call, KvCache(runtime.call.shapes, len(ids))
    cache, parts = slot_cache(kv), []
    for begin, end in ((0, FIRST), (FIRST, COUNT)):
        starts, counts = [begin] * len(ids), [end - begin] * len(ids)
        kv.stage(starts, end - begin)
        drawn = partial(_mask, starts, counts, end)
        mask = mask_argument(runtime.masks, end, call.dtype, call.device, drawn)
        parts.append(call(ids[:, begin:end], positions[:, begin:end], mask, cache, Features()).logits)
        kv.lengths = [end] * len(ids)
    return torch.cat(parts, dim=1)


def _mask(starts: list[int], counts: list[int], slots: int, window: int | None) -> Tensor:
    return chain_mask(starts, counts, nodes=counts[0], slots=slots, window=window)
