"""The self-test of bitwise mode: are the bits at a token those of the token, its position and its path alone?

On the model's own shapes and activations it varies the row of the forward, what the other rows hold, the slots of the cache and
the length of the path: one token in every row at once, and a chain among strangers.
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
"""Tokens of the chain whose bits are compared, and of each text that is put into all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    """Everything that a forward leaves at one token: logits, hidden states, and keys and values of all layers."""

    parts: tuple[Tensor, ...]

    @property
    def logits(self) -> Tensor:
        """[vocab]."""
        return self.parts[0]

    def equal(self, other: "_Bits") -> bool:
        """Bit for bit; NaN equals nothing."""
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))

    def distance(self, other: "_Bits") -> float:
        """Largest difference of any two numbers."""
        pairs = zip(self.parts, other.parts, strict=True)
        return max(float((mine.double() - theirs.double()).abs().max()) for mine, theirs in pairs)


def proved_forward(call: ModelCall, masks: MaskPlan, max_positions: int | None, sample: Sequence[int] = ()) -> FixedForward:
    """A forward of the first width that passes. sample: as for `fault_at`. Raises TargetMismatch with what was seen at each."""
    seen = []
    for width in WIDTHS:
        forward = FixedForward(call, masks, width)
        fault = fault_at(forward, SHORTEST, max_positions, sample)
        if fault is None:
            return forward
        seen.append(f"width {width}: {fault}")
    raise TargetMismatch(
        f"bitwise mode is refused: {type(call.model).__name__} in {str(call.dtype).removeprefix('torch.')} on "
        f"{call.device.type} with {torch.get_num_threads()} threads does not repeat its bits; {'; '.join(seen)}. "
        "Another dtype, attention: eager or sdpa, or another number of threads may work"
    )


def fault_at(forward: FixedForward, length: int, max_positions: int | None, sample: Sequence[int] = ()) -> str | None:
    """What changed the bits of a token over paths of this length, within the context; None if nothing did.

    sample: ids of a text that the model may be given, so that its activations are real ones; none: made-up ids.
    """
    try:
        return _Trial(forward, length, max_positions, sample).fault()
    except torch.OutOfMemoryError:
        raise
    except FORWARD_FAULTS as error:
        return f"its forward fails with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class _Trial:
    """A text, run twice; the model's own words after it; a short chain at the end of a full path, alone and as trees are run.

    The full path is that of the text, repeated over and over: a long path for the price of a short one.
    """

    def __init__(self, forward: FixedForward, length: int, max_positions: int | None, sample: Sequence[int]) -> None:
        self._forward, self._length, self._width = forward, length, forward.width
        call = forward.call
        self._vocab_size = call.vocab_size
        self._sample = [token for token in sample if token < self._vocab_size]
        self._features = Features(last=call.hidden_size is not None, layers=(0, call.num_layers // 2, call.num_layers))
        end = max(length if max_positions is None else min(length, max_positions), self._width + CHAIN)
        blocks = (end - CHAIN) // self._width if length == SHORTEST else 1
        self._kv: PathCache = forward.cache(1)
        self._kv.grow(0, (2 * blocks + self._width // CHAIN) * self._width + 2 * CHAIN + 3 * (self._width - 1 + CHAIN))
        self._free = list(self._kv.nodes[0])
        self._text = self._slots(blocks * self._width)
        self._prefix = [self._text[at % len(self._text)] for at in range(end - CHAIN)]
        shortest = self._width if length == SHORTEST else min(length // 2, len(self._prefix))
        self._lengths = sorted({shortest, (shortest + len(self._prefix)) // 2, len(self._prefix)})

    def fault(self) -> str | None:
        """The first way that gave other bits, and how far off they were."""
        return self._in_turned_rows() or self._in_all_rows() or self._along_a_chain()

    def _in_turned_rows(self) -> str | None:
        """The text as a prompt, and again with each forward's rows turned by half of their number, in slots of its own."""
        half, again = self._width // 2, self._slots(len(self._text))
        for begin in range(0, len(self._text), self._width):
            block = range(begin, begin + self._width)
            expected = self._run([PlacedToken(self._word(at), self._text[at], self._text, at) for at in block])
            tokens = [PlacedToken(self._word(at), again[at], again, at) for at in block]
            got = self._run([*tokens[half:], *tokens[:half]])
            for row, (mine, theirs) in enumerate(zip([*got[half:], *got[:half]], expected, strict=True)):
                if not mine.equal(theirs):
                    turned, apart = (row + half) % self._width, _apart([mine], [theirs])
                    return f"a token in row {turned} instead of {row} has other bits after {begin + row} of a text: {apart}"
        return None

    def _in_all_rows(self) -> str | None:
        """The model's own words after parts of the path, each of them in every row of a forward."""
        others = self._slots(self._width - 1)
        for length in self._lengths:
            path, token = self._prefix[:length], self._word(length)
            for own in self._slots(CHAIN):
                rows = self._run([PlacedToken(token, slot, path, len(path)) for slot in (own, *others)])
                for row, bits in enumerate(rows[1:], start=1):
                    if not bits.equal(rows[0]):
                        apart = _apart([bits], rows[:1])
                        return f"a token in row {row} instead of 0 has other bits after {len(path)} tokens: {apart}"
                path, token = [*path, own], int(rows[0].logits.argmax())
        return None

    def _along_a_chain(self) -> str | None:
        """Token by token in row 0, as plain decoding runs it, and then among others, as trees are run."""
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

    def _word(self, at: int) -> int:
        """The token of the text at this place."""
        return self._sample[at % len(self._sample)] if self._sample else self._token(3, at)

    def _token(self, stride: int, place: int) -> int:
        """Distinct enough, and the same every time."""
        return (7 + stride * (place + 1) ** 2) % self._vocab_size


def _apart(got: Sequence[_Bits], expected: Sequence[_Bits]) -> str:
    return f"numbers apart by up to {max(mine.distance(theirs) for mine, theirs in zip(got, expected, strict=True)):.2g}"
