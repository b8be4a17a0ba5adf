"""How many positions a model has, and where its rotary frequencies change.

Some scalings of rotary positions choose the frequencies of *every* token of a forward by the highest position in it. A token's
logits would then depend on what is scored beside it; so it is known here up to where one set of frequencies serves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
TWO_SETS = ("longrope", "su")
"""Scalings with one set of frequencies up to the original length, and another beyond."""


@dataclass(frozen=True, slots=True)
class Context:
    """max_positions: None for unbounded. capped_because: why not more, where the model itself goes further.

    original: tokens of a text up to which one set of factors serves, and from which on another; None: one serves all.
    """

    max_positions: int | None
    capped_because: str | None = None
    original: int | None = None

    def of_one_set(self) -> "Context":
        """The part that the first set of factors serves."""
        if self.original is None:
            return self
        return Context(
            self.original,
            f"beyond original_max_position_embeddings ({self.original}) its rotary positions take other factors, for every "
            "token of a forward",
        )


def context_of(text: Any, cap: int | None) -> Context:
    """The context of a language model of this config. cap: the user's `max_context`, which may lift what is cut by default."""
    own = next((value for name in LENGTHS if isinstance(value := getattr(text, name, None), int)), None)
    if own is None:
        return Context(cap)
    for rope in rope_settings(text):
        kind = rope_kind(rope)
        if kind in TWO_SETS:
            original, limit = _original(text, rope, own), own if cap is None else min(own, cap)
            return Context(limit, original=original if original < limit else None)
        if "dynamic" in kind:
            return _dynamic(kind, own, cap)
        if kind == "yarn":
            own = max(own, _stretched(rope, _original(text, rope, own)))
        if kind == "linear" and cap is not None:
            own = max(own, min(cap, _stretched(rope, own)))
    return Context(own if cap is None else min(own, cap))


def rope_settings(text: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a config's rotary positions, one mapping for each kind of layer that has its own."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = getattr(text, name, None)
        if isinstance(settings, Mapping):
            nested = [value for value in settings.values() if isinstance(value, Mapping)]
            yield from nested or [settings]
            return


def rope_kind(settings: Mapping[str, Any]) -> str:
    """What a scaling is called."""
    return str(settings.get("rope_type") or settings.get("type") or "default")


def _dynamic(kind: str, own: int, cap: int | None) -> Context:
    if cap is not None and cap <= own:
        return Context(cap)
    return Context(
        own,
        f"its rotary positions are scaled by '{kind}', which beyond max_position_embeddings ({own}) turns every token of "
        "a forward by its length",
    )


def _original(text: Any, rope: Mapping[str, Any], own: int) -> int:
    named = getattr(text, "original_max_position_embeddings", None), rope.get("original_max_position_embeddings")
    return next((value for value in named if isinstance(value, int) and value > 0), own)


def _stretched(rope: Mapping[str, Any], original: int) -> int:
    factor = rope.get("factor")
    return int(original * factor) if isinstance(factor, int | float) and factor > 1 else 0
