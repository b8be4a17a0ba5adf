"""The options of `bench`."""

from pathlib import Path
from typing import Annotated

import typer

Prompts = Annotated[
    list[Path],
    typer.Option("--prompts", metavar="FILE", help="JSON lines: turns, messages, prompt or question. Repeatable."),
]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", "-s", metavar="NAME", help="A strategy's name or .yaml file. Repeatable.")
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Results; an existing file is resumed.")]
Count = Annotated[int | None, typer.Option(min=1, help="How many questions of each file, from its start.")]
Category = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only questions of this category. Repeatable.")]
Turns = Annotated[int | None, typer.Option(min=1, help="At most this many turns of each question.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="At most this many tokens per answer.")]
Temperature = Annotated[
    list[float] | None, typer.Option(min=0, metavar="T", help="Sampling temperature. Repeatable. [default: 0]")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Top-k truncation above temperature 0.")]
TopP = Annotated[float | None, typer.Option(min=0, max=1, help="Top-p truncation above temperature 0.")]
BatchSize = Annotated[
    list[int] | None, typer.Option(min=1, metavar="N", help="Questions decoded together. Repeatable. [default: 1]")
]
Queue = Annotated[
    int, typer.Option(min=1, metavar="N", help="Questions per slot of a batch; the next one begins when one ends.")
]
Dtype = Annotated[list[str] | None, typer.Option(metavar="NAME", help="The target's dtype, such as float32. Repeatable.")]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME",
        help="A method of transformers: transformers, transformers-lookup[-N], transformers-assisted; or an endpoint as "
        "http://HOST/v1#MODEL. Repeatable. [default: all methods that fit]",
    ),
]
NoPeers = Annotated[bool, typer.Option("--no-peers", help="Do not measure transformers.")]
Assistant = Annotated[
    str | None, typer.Option(metavar="PATH", help="Draft model for assisted generation. [default: a strategy's]")
]
Warmup = Annotated[int, typer.Option(min=0, help="Answers of each contender before the measurement begins.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random draws.")]
Chat = Annotated[bool | None, typer.Option("--chat/--raw", help="Use the chat template, or not. [default: where there is one]")]
