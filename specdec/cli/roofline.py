"""`roofline`: the costs of a machine that is not here, from its data sheet."""

from math import isfinite
from typing import Annotated

import typer

from specdec.cli.output_files import claim_outputs
from specdec.cli.profile import Output, Plot
from specdec.cli.terminal import guarded
from specdec.errors import SpecError

Parameters = Annotated[
    float, typer.Option(min=1, help="Number of weights used for every token, such as 70e9.", show_default=False)
]
Bandwidth = Annotated[float, typer.Option(min=1, help="Bytes per second of one device, such as 2.039e12.", show_default=False)]
Flops = Annotated[float, typer.Option(min=1, help="Operations per second of one device, such as 312e12.", show_default=False)]
Devices = Annotated[int, typer.Option(min=1, help="Devices that share the weights.")]
Efficiency = Annotated[float, typer.Option(min=0.01, max=1, help="Share of both peaks that is reached in practice.")]
ForwardOverhead = Annotated[float, typer.Option(min=0, help="Additional seconds per forward.")]
BytesPerParameter = Annotated[float, typer.Option(min=0.1, help="Bytes per weight; 2 for 16 bits.")]
KvBytesPerToken = Annotated[float, typer.Option(min=0, help="Cache bytes per token, over all layers.")]
DraftParameters = Annotated[
    float | None,
    typer.Option(min=1, help="Number of weights of the draft model, on one device. [default: drafts cost nothing]"),
]
Name = Annotated[str, typer.Option(help="Name of the machine.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("roofline", help="Estimate the costs of another machine from its bandwidth and arithmetic.")(roofline)


@guarded
def roofline(
    output: Output,
    parameters: Parameters,
    bandwidth: Bandwidth,
    flops: Flops,
    devices: Devices = 1,
    efficiency: Efficiency = 0.7,
    forward_overhead: ForwardOverhead = 0.0,
    bytes_per_parameter: BytesPerParameter = 2.0,
    kv_bytes_per_token: KvBytesPerToken = 0.0,
    draft_parameters: DraftParameters = None,
    name: Name = "a machine by data sheet",
    plot: Plot = None,
) -> None:
    """The larger of the time to read all weights and the time for two operations per weight and token."""
    from specdec.performance.cost_model import write_costs
    from specdec.tree_search.pictures import draw_costs
    from specdec.tree_search.roofline import Machine, ModelSize, roofline_costs

    claim_outputs(output, plot)
    sizes = (parameters, bandwidth, flops, forward_overhead, bytes_per_parameter, kv_bytes_per_token, draft_parameters or 0.0)
    if not all(map(isfinite, sizes)):
        raise SpecError("--bandwidth, --flops and the others: expected finite numbers, got an infinite one")
    machine = Machine(
        bandwidth=bandwidth, flops=flops, devices=devices, efficiency=efficiency, forward_overhead=forward_overhead
    )
    model = ModelSize(parameters=parameters, bytes_per_parameter=bytes_per_parameter, kv_bytes_per_token=kv_bytes_per_token)
    draft = None
    if draft_parameters is not None:
        draft = ModelSize(parameters=draft_parameters, bytes_per_parameter=bytes_per_parameter)
    costs = roofline_costs(machine, model, draft, source=f"{name}: roofline, not measured")
    write_costs(output, costs)
    if plot is not None:
        draw_costs(costs, plot)
    one, *rest = costs.forward_seconds[0]
    free = max(width for width, seconds in zip(costs.widths, costs.forward_seconds[0], strict=True) if seconds < 1.01 * one)
    typer.echo(
        f"{costs.source}\n{1e3 * one:.2f} ms a token; up to {free} at once take no longer, {costs.widths[-1]} take "
        f"{rest[-1] / one:.2f} times as long"
    )
