"""From a loaded model to a runtime and its facts; shared by every target that runs on transformers."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

from specdec.errors import SpecdecWarning, TargetMismatch
from specdec.interfaces.results import TargetFacts
from specdec.interfaces.text_codec import TextCodec
from specdec.nn.placement import keep_freed_memory
from specdec.targets.bitwise import BitwiseRuntime
from specdec.targets.bitwise_loading import sample_ids, self_tested_forward
from specdec.targets.capability import Limits, mask_plan, no_trees_because, text_config
from specdec.targets.context import Context, context_of
from specdec.targets.fusing import ForwardKind, fuse
from specdec.targets.model_call import ModelCall
from specdec.targets.position_probe import position_fault
from specdec.targets.probe import BRANCHING, probed, tree_fault
from specdec.targets.quiet import quiet
from specdec.targets.rotary import LongFactors
from specdec.targets.runtime import TransformerRuntime
from specdec.targets.stop_tokens import stop_ids
from specdec.targets.transformers_target import Assembled, Runtime
from specdec.targets.two_ranges import TwoRangeRuntime

BITWISE = (
    "tokens equal those of plain decoding in this mode bit for bit, in bfloat16 too: all forwards have one width, which a "
    "self-test finds at load, and prefill_chunk is that width; for proofs, debugging and reproducible serving, not for speed"
)
"""What the option of that name does."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """prefill_chunk: tokens per forward of a prompt. max_context: cap on the context. probe: try the model at load.

    bitwise: run it in bitwise mode, with the model's own forward. forward: whose it is otherwise. codec: of the model's
    texts, where it has one: the self-test of bitwise mode reads one.
    """

    prefill_chunk: int
    max_context: int | None
    probe: bool
    bitwise: bool = False
    forward: ForwardKind = "auto"
    codec: TextCodec | None = None


def assemble(model: Any, settings: RunSettings, description: str, tokenizer: Any | None = None) -> Assembled:
    """Learn the model's shapes, try it on a small tree, and state its facts. tokenizer: for the token that ends a text."""
    with quiet():
        wanted = context_of(text_config(model.config), settings.max_context)
        context, factors = _factors(model, wanted)
        inner = _inner(model, context, factors, settings)
        runtime: Runtime = inner if factors is None else TwoRangeRuntime(inner, factors, context.original or 0)
    call, limits = runtime.call, runtime.limits
    if limits.capped_because and (limits.max_positions or 0) < max(settings.max_context or 0, wanted.max_positions or 0):
        warnings.warn(f"the context ends after {limits.context}", SpecdecWarning, stacklevel=2)
    if call.device.type == "cpu":
        keep_freed_memory()
    facts = TargetFacts(
        vocab_size=call.vocab_size,
        max_positions=limits.max_positions,
        capped_because=limits.capped_because,
        stop_ids=stop_ids(model, tokenizer, call.vocab_size),
        hidden_size=call.hidden_size,
        num_layers=call.num_layers,
        device=call.device,
        dtype=call.dtype,
        description=f"{description}, bitwise at width {inner.width}" if isinstance(inner, BitwiseRuntime) else description,
        trees=runtime.limits.no_trees_because is None,
        bitwise=isinstance(inner, BitwiseRuntime),
        revision=getattr(model.config, "_commit_hash", None),
    )
    return Assembled(runtime, facts)


def _factors(model: Any, context: Context) -> tuple[Context, LongFactors | None]:
    """The long factors where the context needs them; without a rotary module that is known, it ends before."""
    if context.original is None or context.max_positions is None:
        return context, None
    factors = LongFactors.of(model, context.max_positions - 1)
    return (context, factors) if factors is not None else (context.of_one_set(), None)


def _inner(
    model: Any, context: Context, factors: LongFactors | None, settings: RunSettings
) -> TransformerRuntime | BitwiseRuntime:
    """The model's runtime, tried with each set of its factors apart."""
    whole = Limits(context.max_positions, settings.prefill_chunk, no_trees_because(model.config), context.capped_because)
    short = whole if factors is None else replace(whole, max_positions=context.original)
    plain = TransformerRuntime(ModelCall(model), mask_plan(model.config), short)
    if settings.probe:
        plain = probed(plain)
    if not settings.bitwise:
        fuse(plain, settings.forward)
    if settings.probe and plain.call.fused is None:
        _refuse_mixing(plain)
    if factors is not None:
        plain = TransformerRuntime(plain.call, plain.masks, replace(plain.limits, max_positions=context.max_positions))
        with factors.taken():
            if settings.probe:
                _refuse_mixing(plain)
    return _bitwise(plain, settings) if settings.bitwise else plain


def _refuse_mixing(runtime: TransformerRuntime) -> None:
    """Raise TargetMismatch for a model whose tokens change with what else is in their forward; a fused one has been tried."""
    if (fault := position_fault(runtime)) is not None:
        raise TargetMismatch(f"{type(runtime.call.model).__name__}: {fault}; a max_context below that position may work")


def _bitwise(plain: TransformerRuntime, settings: RunSettings) -> BitwiseRuntime:
    """Raises TargetMismatch where the mode is refused, or where it does not give the model's own logits."""
    sample = sample_ids(settings.codec)
    runtime = BitwiseRuntime(self_tested_forward(plain, sample), plain.limits, sample)
    fault = tree_fault(runtime, BRANCHING) if settings.probe else None
    if fault is not None:
        raise TargetMismatch(f"bitwise mode is refused: {fault}")
    return runtime
