"""From a loaded model to a runtime and its facts; shared by every target that runs on transformers."""

from dataclasses import dataclass
from typing import Any

from specdec.errors import SpecdecError
from specdec.interfaces import TargetFacts, TargetState
from specdec.targets.allocator import keep_freed_memory
from specdec.targets.capability import mask_plan, max_positions, no_trees_because
from specdec.targets.loading import quiet, stop_ids
from specdec.targets.model_call import ModelCall
from specdec.targets.probe import probed
from specdec.targets.runtime import Limits, TransformerRuntime, TransformerState


@dataclass(frozen=True, slots=True)
class RunSettings:
    """prefill_chunk: tokens per forward of a prompt. max_context: cap on the context. probe: try the model at load."""

    prefill_chunk: int
    max_context: int | None
    probe: bool


@dataclass(frozen=True, slots=True)
class Assembled:
    """A runtime and what is known of it."""

    runtime: TransformerRuntime
    facts: TargetFacts


def assemble(model: Any, settings: RunSettings, description: str) -> Assembled:
    """Learn the model's shapes, try it on a small tree, and state its facts."""
    with quiet():
        limits = Limits(
            max_positions(model.config, settings.max_context), settings.prefill_chunk, no_trees_because(model.config)
        )
        runtime = TransformerRuntime(ModelCall(model), mask_plan(model.config), limits)
        if settings.probe:
            runtime = probed(runtime)
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
        description=description,
        trees=runtime.limits.no_trees_because is None,
    )
    return Assembled(runtime, facts)


def own_state(state: TargetState) -> TransformerState:
    """The state as one of ours. Raises SpecdecError for another target's."""
    if not isinstance(state, TransformerState):
        raise SpecdecError(f"a {type(state).__name__} is no state of this target; its prefill gives one")
    return state
