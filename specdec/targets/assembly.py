"""From a loaded model to a runtime and its facts; shared by every target that runs on transformers."""

from dataclasses import dataclass
from typing import Any

from specdec.errors import TargetMismatch
from specdec.interfaces.results import TargetFacts
from specdec.targets.admission import Limits
from specdec.targets.allocator import keep_freed_memory
from specdec.targets.bitwise import BitwiseRuntime
from specdec.targets.bitwise_loading import bitwise_runtime
from specdec.targets.capability import mask_plan, max_positions, no_trees_because
from specdec.targets.fusing import ForwardKind, fuse
from specdec.targets.loading import stop_ids
from specdec.targets.model_call import ModelCall
from specdec.targets.probe import BRANCHING, probed, tree_fault
from specdec.targets.quiet import quiet
from specdec.targets.runtime import TransformerRuntime

BITWISE = (
    "tokens equal those of plain decoding in this mode bit for bit, in bfloat16 too: all forwards have one width, which a "
    "self-test finds at load, and prefill_chunk is that width; for proofs, debugging and reproducible serving, not for speed"
)
"""What the option of that name does."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """prefill_chunk: tokens per forward of a prompt. max_context: cap on the context. probe: try the model at load.

    bitwise: run it in bitwise mode, with the model's own forward. forward: whose it is otherwise.
    """

    prefill_chunk: int
    max_context: int | None
    probe: bool
    bitwise: bool = False
    forward: ForwardKind = "auto"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A runtime and what is known of it."""

    runtime: TransformerRuntime | BitwiseRuntime
    facts: TargetFacts


def assemble(model: Any, settings: RunSettings, description: str) -> Assembled:
    """Learn the model's shapes, try it on a small tree, and state its facts."""
    with quiet():
        limits = Limits(
            max_positions(model.config, settings.max_context), settings.prefill_chunk, no_trees_because(model.config)
        )
        plain = TransformerRuntime(ModelCall(model), mask_plan(model.config), limits)
        if settings.probe:
            plain = probed(plain)
        if not settings.bitwise:
            fuse(plain, settings.forward)
        runtime = _bitwise(plain, probe=settings.probe) if settings.bitwise else plain
    call = runtime.call
    if call.device.type == "cpu":
        keep_freed_memory()
    facts = TargetFacts(
        vocab_size=call.vocab_size,
        max_positions=limits.max_positions,
        stop_ids=stop_ids(model),
        hidden_size=call.hidden_size,
        num_layers=call.num_layers,
        device=call.device,
        dtype=call.dtype,
        description=f"{description}, bitwise at width {runtime.width}" if isinstance(runtime, BitwiseRuntime) else description,
        trees=runtime.limits.no_trees_because is None,
        bitwise=isinstance(runtime, BitwiseRuntime),
        revision=getattr(model.config, "_commit_hash", None),
    )
    return Assembled(runtime, facts)


def _bitwise(plain: TransformerRuntime, *, probe: bool) -> BitwiseRuntime:
    """Raises TargetMismatch where the mode is refused, or where it does not give the model's own logits."""
    runtime = bitwise_runtime(plain)
    fault = tree_fault(runtime, BRANCHING) if probe else None
    if fault is not None:
        raise TargetMismatch(f"bitwise mode is refused: {fault}")
    return runtime
