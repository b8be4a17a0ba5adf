"""A forward of fixed shape: so many tokens, each a row of its own over a path of fixed length.

What comes out at a token then depends on the token, its position and its path, and on nothing else that is computed beside it:
`bitwise_proof` checks that on the model at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.nn.path_kv_cache import PathCache
from specdec.targets.bitwise_attention import RowByRow
from specdec.targets.capability import MaskPlan, mask_argument
from specdec.targets.model_call import ModelCall, ModelOutput

SHORTEST = 128
"""Slots of the shortest path buffer; each next one is twice as long."""


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token and where it stands: below the first `count` slots of `prefix` and the slots of `above`, in `slot`.

    wanted: whether its logits are.
    """

    token: int
    slot: int
    prefix: Sequence[int]
    count: int
    above: tuple[int, ...] = ()
    wanted: bool = True

    @property
    def position(self) -> int:
        """Tokens before it on its path."""
        return self.count + len(self.above)

    @property
    def path(self) -> list[int]:
        """Slots in path order, its own last."""
        return [*self.prefix[: self.count], *self.above, self.slot]


def path_length(position: int) -> int:
    """The fixed length for a token at this position: a function of the position alone, so that plain decoding has the same."""
    length = SHORTEST
    while length <= position:
        length *= 2
    return length


class FixedForward:
    """Runs the model on rows of one token each, `width` of them whatever is asked; the rest fills up and sees only itself."""

    def __init__(self, call: ModelCall, masks: MaskPlan, width: int) -> None:
        self.call = call
        self.width = width
        self.masks = masks

    def cache(self, rows: int) -> PathCache:
        """An empty cache for so many sequences."""
        return PathCache(self.call.shapes, rows, self.width)

    def __call__(self, kv: PathCache, tokens: Sequence[PlacedToken | None], length: int, features: Features) -> ModelOutput:
        """Logits [width, 1, vocab] (no vocab where none are wanted) and hidden states [width, 1, ...]; None fills up.

        kv is written at the tokens' slots; `length` is at least every position + 1.
        """
        from specdec.targets.cache_adapter import slot_cache

        padded = [*tokens, *[None] * (self.width - len(tokens))]
        rows = [one or PlacedToken(0, slot, (), 0, wanted=False) for one, slot in zip(padded, kv.scratch, strict=True)]
        kv.stage([one.slot for one in rows], [one.path for one in rows], length)
        positions = torch.tensor([one.position for one in rows])
        mask = mask_argument(
            self.masks, length, self.call.dtype, self.call.device, lambda window: path_mask(positions, length, window)
        )
        ids = torch.tensor([[one.token] for one in rows], device=self.call.device)
        kept = 0 if any(one.wanted for one in rows) else torch.empty(0, dtype=torch.int64, device=self.call.device)
        placed = positions[:, None].to(self.call.device)
        with RowByRow():
            return self.call(ids, placed, mask, slot_cache(kv), features, kept)


def path_mask(positions: Tensor, length: int, window: int | None) -> Tensor:
    """[tokens, 1, 1, length] bool: on its own path, in path order, a token sees what stands at or before its position."""
    slot, own = torch.arange(length), positions[:, None]
    seen = slot <= own
    if window is not None:
        seen &= slot > own - window
    return seen[:, None, None]
