"""Options of `specdec generate`."""

from pathlib import Path
from typing import Annotated

import typer

Chat = Annotated[bool | None, typer.Option("--chat/--raw", help="Use the chat template, or not. [default: where there is one]")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Key of all draws. [default: made from the spec's seed]")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="0 is greedy. [default: the spec's]")]
TopK = Annotated[int | None, typer.Option(min=1, help="Keep the k likeliest tokens. [default: the spec's]")]
TopP = Annotated[float | None, typer.Option(help="Keep the smallest set with this mass. [default: the spec's]")]
ControlTokens = Annotated[
    str, typer.Option(metavar="allow|refuse|escape", help="Special tokens typed into the prompt: as such, never, as text.")
]
TraceTo = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write down every step; `specdec trace show` makes a page of it.")
]

StopIds = Annotated[
    list[int] | None,
    typer.Option("--stop-id", metavar="ID", min=0, help="A token that ends the answer, beside the model's own; repeatable."),
]
