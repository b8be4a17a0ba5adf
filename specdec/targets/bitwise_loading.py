"""Whether bitwise mode may be had, from the config and from the loaded model."""

from collections.abc import Sequence
from typing import Any

from specdec.errors import TargetMismatch
from specdec.interfaces.text_codec import TextCodec
from specdec.targets.bitwise_forward import FixedForward
from specdec.targets.bitwise_proof import proved_forward
from specdec.targets.capability import has_experts, no_trees_because
from specdec.targets.probing import ProbedRuntime

FIXED_EXPERTS = "batched_mm"
"""The way of running experts in which each token costs a product of its own, whichever experts the others take."""


SAMPLE = (
    "Speculative decoding drafts several tokens with a small model and lets the large one check all of them at once. "
    "On Monday, 14 March 1988, Dr. Ruth O'Neill paid $3,200.50 for a cottage by the sea; her brother laughed, and asked why. "
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return total / len(values)\n"
    "| name | price |\n|------|-------|\n| tea  | 2.40  |\n"
)
"""A text for the self-test: prose, numbers, code and a table, whose activations are not those of made-up ids."""


def no_bitwise_because(config: Any) -> str | None:
    """What the config alone tells against bitwise mode; None if nothing."""
    reason = no_trees_because(config)
    return (
        None if reason is None else f"bitwise mode gives each token a path of its own, and {reason}; bitwise: false would work"
    )


def sample_ids(codec: TextCodec | None) -> tuple[int, ...]:
    """What the self-test feeds a model with this codec; nothing without one."""
    return () if codec is None else tuple(codec.encode(SAMPLE))


def self_tested_forward(runtime: ProbedRuntime, sample: Sequence[int] = ()) -> FixedForward:
    """The forward of the same model in bitwise mode. sample: ids for the self-test.

    Raises TargetMismatch where the mode is refused, with what was seen.
    """
    model, limits = runtime.call.model, runtime.limits
    if limits.no_trees_because is not None:
        raise TargetMismatch(f"bitwise mode is refused: this model scores chains only ({limits.no_trees_because})")
    _fix_experts(model)
    return proved_forward(runtime.call, runtime.masks, limits.max_positions, sample)


def _fix_experts(model: Any) -> None:
    """Run experts in products whose sizes no routing changes."""
    if not has_experts(model.config):
        return
    model.set_experts_implementation(FIXED_EXPERTS)
    if model.get_experts_implementation()[""] != FIXED_EXPERTS:
        raise TargetMismatch(
            f"bitwise mode is refused: {type(model).__name__} runs each expert on as many rows as are routed to it, "
            "so that no width is fixed; a model without experts would work"
        )
