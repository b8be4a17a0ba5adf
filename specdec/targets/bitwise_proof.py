"""The self-test of bitwise mode: are the bits at a token those of the token, its position and its path alone?

On the model's own shapes it varies the row of the forward, what the other rows hold, and the slots of the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.nn.path_kv_cache import PathCache
from specdec.targets.bitwise_forward import SHORTEST, FixedForward, PlacedToken
from specdec.targets.capability import MaskPlan
from specdec.targets.model_call import FORWARD_FAULTS, ModelCall

WIDTHS = (16, 8, 32)
"""In the order in which they are tried: 16 rows cost a CPU little more than 8, and a tree then takes half the forwards."""

CHAIN = 4
"""Tokens of the chain whose bits are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    """Everything that a forward leaves at one token: logits, hidden states, and keys and values of all layers."""

    parts: tuple[Tensor, ...]

    def equal(self, other: "_Bits") -> bool:
        """Bit for bit; NaN equals nothing."""
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))

    def distance(self, other: "_Bits") -> float:
        """Largest difference of any two numbers."""
        pairs = zip(self.parts, other.parts, strict=True)
        return max(float((mine.double() - theirs.double()).abs().max()) for mine, theirs in pairs)


def proved_forward(call: ModelCall, masks: MaskPlan, max_positions: int | None) -> FixedForward:
    """A forward of the first width that passes. Raises TargetMismatch with what was seen at each."""
    seen = []
    for width in WIDTHS:
        forward = FixedForward(call, masks, width)
        fault = fault_at(forward, SHORTEST, max_positions)
        if fault is None:
            return forward
        seen.append(f"width {width}: {fault}")
    raise TargetMismatch(
        f"bitwise mode is refused: {type(call.model).__name__} in {str(call.dtype).removeprefix('torch.')} on "
        f"{call.device.type} with {torch.get_num_threads()} threads does not repeat its bits; {'; '.join(seen)}. "
        "Another dtype, attention: eager or sdpa, or another number of threads may work"
    )


def fault_at(forward: FixedForward, length: int, max_positions: int | None) -> str | None:
    """What changed the bits of a token over paths of this length, within the context; None if nothing did."""
    try:
        return _Trial(forward, length, max_positions).fault()
    except torch.OutOfMemoryError:
        raise
    except FORWARD_FAULTS as error:
        return f"its forward fails with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class _Trial:
    """A short chain at the end of a full path: token by token in row 0, as plain decoding runs it, and then as trees are run.

    The path is a real one of `width` tokens, told over and over: a long path for the price of a short one.
    """

    def __init__(self, forward: FixedForward, length: int, max_positions: int | None) -> None:
        self._forward, self._length, self._width = forward, length, forward.width
        call = forward.call
        self._vocab_size = call.vocab_size
        self._features = Features(last=call.hidden_size is not None, layers=(0, call.num_layers // 2, call.num_layers))
        self._kv: PathCache = forward.cache(1)
        self._kv.grow(0, (self._width // CHAIN + 1) * self._width + 2 * CHAIN)
        self._free = list(self._kv.nodes[0])
        prefix = self._slots(self._width)
        forward(
            self._kv, [PlacedToken(self._token(3, at), prefix[at], prefix, at) for at in range(self._width)], length, Features()
        )
        end = max(length if max_positions is None else min(length, max_positions), self._width + CHAIN)
        self._prefix = [prefix[at % self._width] for at in range(end - CHAIN)]

    def fault(self) -> str | None:
        """The first way that gave other bits, and how far off the logits were."""
        chain = self._chain(self._slots(CHAIN))
        expected = [self._run([token])[0] for token in chain]
        lone = self._run([None] * (self._width - 1) + [chain[-1]])[-1]
        if not lone.equal(expected[-1]):
            return f"a token in row {self._width - 1} instead of 0 has other bits: {_apart([lone], expected[-1:])}"
        for first in range(0, self._width, CHAIN):
            got = self._among_others(first)
            if not all(mine.equal(theirs) for mine, theirs in zip(got, expected, strict=True)):
                return f"tokens in rows {first} to {first + CHAIN - 1} among others have other bits: {_apart(got, expected)}"
        return None

    def _among_others(self, first: int) -> list[_Bits]:
        """The chain in rows first, first + 1, ... (each other time backwards), rivals and strangers in all other rows."""
        slots = self._slots(self._width)[::-1]
        mine, theirs = slots[first : first + CHAIN], slots[:first] + slots[first + CHAIN :]
        others = [self._other(place, slot, mine) for place, slot in enumerate(theirs)]
        chain, turned = self._chain(mine), bool(first // CHAIN % 2)
        bits = self._run([*others[:first], *(chain[::-1] if turned else chain), *others[first:]])[first : first + CHAIN]
        return bits[::-1] if turned else bits

    def _other(self, place: int, slot: int, chain: Sequence[int]) -> PlacedToken:
        """A sibling of a token of the chain, or a token on a short path of its own."""
        token = self._token(17, place)
        if place % 2:
            return PlacedToken(token, slot, self._prefix, self._width // 2)
        return self._placed(token, slot, chain[: place // 2 % CHAIN])

    def _chain(self, slots: Sequence[int]) -> list[PlacedToken]:
        return [self._placed(self._token(11, place), slot, slots[:place]) for place, slot in enumerate(slots)]

    def _placed(self, token: int, slot: int, above: Sequence[int]) -> PlacedToken:
        return PlacedToken(token, slot, self._prefix, len(self._prefix), tuple(above))

    def _run(self, tokens: Sequence[PlacedToken | None]) -> list[_Bits]:
        """What is left at these tokens, in order; None gives what a filling row leaves, to keep places."""
        output = self._forward(self._kv, tokens, self._length, self._features)
        hidden = [part for part in (output.hidden.last, output.hidden.layers) if part is not None]
        bits = []
        for row, token in enumerate(tokens):
            slot = self._kv.scratch[row] if token is None else token.slot
            layers = [layer for layer, shape in enumerate(self._kv.shapes) if shape is not None]
            cached = [part for layer in layers for part in self._kv.at(layer, [slot])]
            bits.append(_Bits((output.logits[row, 0], *(part[row, 0] for part in hidden), *cached)))
        return bits

    def _slots(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _token(self, stride: int, place: int) -> int:
        """Distinct enough, and the same every time."""
        return (7 + stride * (place + 1) ** 2) % self._vocab_size


def _apart(got: Sequence[_Bits], expected: Sequence[_Bits]) -> str:
    return f"numbers apart by up to {max(mine.distance(theirs) for mine, theirs in zip(got, expected, strict=True)):.2g}"
