"""Costs of a machine that is not at hand: the slower of reading the weights and doing the arithmetic.

A forward reads every weight once, and does two operations a weight and token. *Source: roofline model, Williams et al. 2009.*
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from specdec.performance.cost_model import CostModel, DrafterCost

WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (1, 1024, 4096, 16384)
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32, 64)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Machine(BaseModel):
    """The devices that a model runs on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bandwidth: Annotated[Positive, Field(description="bytes per second from memory, of one device")]
    flops: Annotated[Positive, Field(description="operations per second in the model's dtype, of one device")]
    devices: Annotated[int, Field(ge=1, description="devices that share the target's weights")] = 1
    efficiency: Annotated[float, Field(gt=0, le=1, description="share of both peaks that is reached")] = 0.7
    forward_overhead: Annotated[NotNegative, Field(description="seconds a forward takes beyond the roofline")] = 0.0


class ModelSize(BaseModel):
    """What a forward reads and computes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: Annotated[Positive, Field(description="weights that every token uses")]
    bytes_per_parameter: Annotated[Positive, Field(description="2 for 16 bits")] = 2.0
    kv_bytes_per_token: Annotated[NotNegative, Field(description="of the cache, all layers")] = 0.0


def forward_seconds(machine: Machine, model: ModelSize, *, new_tokens: int, context: int, devices: int) -> float:
    """Seconds of one forward."""
    moved = model.parameters * model.bytes_per_parameter + context * model.kv_bytes_per_token
    operations = 2 * model.parameters * new_tokens
    reached = machine.efficiency * devices
    return max(moved / (machine.bandwidth * reached), operations / (machine.flops * reached)) + machine.forward_overhead


def roofline_costs(machine: Machine, model: ModelSize, draft: ModelSize | None, *, source: str) -> CostModel:
    """A cost model by data sheet; the draft model runs on one of the devices."""

    def target(new_tokens: int, context: int) -> float:
        return forward_seconds(machine, model, new_tokens=new_tokens, context=context, devices=machine.devices)

    contexts = CONTEXTS if model.kv_bytes_per_token else CONTEXTS[:1]
    drafter = None
    if draft is not None:
        levels = [forward_seconds(machine, draft, new_tokens=w, context=0, devices=1) for w in DRAFT_WIDTHS]
        drafter = DrafterCost(name="roofline", first_seconds=levels[0], widths=DRAFT_WIDTHS, seconds=tuple(levels))
    return CostModel(
        source=source,
        provenance={
            "machine": machine.model_dump(),
            "model": model.model_dump(),
            "draft": None if draft is None else draft.model_dump(),
        },
        widths=WIDTHS,
        contexts=contexts,
        forward_seconds=tuple(tuple(target(width, context) for width in WIDTHS) for context in contexts),
        drafter=drafter,
    )
