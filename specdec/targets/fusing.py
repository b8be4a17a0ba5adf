"""When the fused forward takes the place of the model's own: where it is known to be faster, and gives the same logits."""

from typing import Any, Literal

from specdec.errors import TargetMismatch
from specdec.nn.packed_linear import PACKED_DTYPES
from specdec.targets.compiled_forward import CompiledForward
from specdec.targets.fusable import not_fusable_because
from specdec.targets.fused_forward import FusedForward
from specdec.targets.model_call import FORWARD_FAULTS, ModelCall
from specdec.targets.position_probe import position_fault
from specdec.targets.probe import BRANCHING, tree_fault
from specdec.targets.probing import ProbedRuntime

ForwardKind = Literal["auto", "fused", "compiled", "model"]

FORWARD = (
    "fused: LLaMA-like models in a third of the operations, with weights held twice, in a layout for the processor; "
    "compiled: that in padded shapes, each compiled at its first use by torch.compile, on a GPU as CUDA graphs; "
    "model: as transformers runs it; auto: fused on a CPU where it gives the model's logits and the weights are small"
)
"""What the option `forward` does."""

SMALL_BYTES = 4e9
"""Weights of which `auto` holds a second copy."""


def fuse(runtime: ProbedRuntime, kind: ForwardKind) -> None:
    """Let the runtime's call use the fused forward. Raises TargetMismatch where `kind` asks for it and it cannot be had."""
    if kind == "model":
        return
    call = runtime.call
    reason = _refused(runtime) or (_unwanted(call) if kind == "auto" else None)
    if reason is None:
        # Far positions before it is compiled: they would cost forms that no decode needs.
        reason = _build(call) or position_fault(runtime)
        if reason is None and kind == "compiled" and isinstance(call.fused, FusedForward):
            call.fused = CompiledForward(call.fused)
        reason = reason or tree_fault(runtime, BRANCHING)
    if reason is not None:
        call.fused = None
        if kind != "auto":
            raise TargetMismatch(f"{type(call.model).__name__} has no {kind} forward: {reason}; forward: model would work")


def _build(call: ModelCall) -> str | None:
    """Let the call use it. Why that cannot be, or None."""
    try:
        call.fused = FusedForward(call.model, list(call.layers), call.decoder)
    except FORWARD_FAULTS as error:
        return f"building it fails with {type(error).__name__}: {error}"
    return None


def _refused(runtime: ProbedRuntime) -> str | None:
    call = runtime.call
    if runtime.limits.no_trees_because is not None:
        return runtime.limits.no_trees_because
    if runtime.masks.by_layer_type:
        return "its layers take masks of several kinds"
    if (kind := _attention(call.model)) != "sdpa":
        return f"its attention is '{kind}', not sdpa"
    return not_fusable_because(call.model, list(call.layers), call.decoder)


def _unwanted(call: ModelCall) -> str | None:
    if call.device.type != "cpu" or call.dtype not in PACKED_DTYPES:
        return "it is for float32 and bfloat16 on a CPU"
    size = sum(parameter.numel() * parameter.element_size() for parameter in call.model.parameters())
    return None if size <= SMALL_BYTES else "the weights are large"


def _attention(model: Any) -> str:
    return str(getattr(model.config, "_attn_implementation", "unknown"))
