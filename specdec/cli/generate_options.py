"""Options of `specdec generate`."""

from pathlib import Path
from typing import Annotated

import typer

Chat = Annotated[bool | None, typer.Option("--chat/--raw", help="Use the chat template, or not. [default: where there is one]")]
Seed = Annotated[
    int | None, typer.Option(min=0, max=2**63 - 1, help="Seed of all random draws. [default: from the strategy's]")
]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="0 is greedy. [default: the strategy's]")]
TopK = Annotated[int | None, typer.Option(min=1, help="Keep the k likeliest tokens. [default: the strategy's]")]
TopP = Annotated[
    float | None, typer.Option(help="Keep the smallest set of tokens with this total probability. [default: the strategy's]")
]
ControlTokens = Annotated[
    str,
    typer.Option(metavar="allow|refuse|escape", help="Special tokens typed into the prompt: kept, refused, or read as text."),
]
TraceTo = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Record every step; `specdec trace show` makes a page of it.")
]

StopIds = Annotated[
    list[int] | None,
    typer.Option("--stop-id", metavar="ID", min=0, help="A token that ends the answer, besides the model's own. Repeatable."),
]
