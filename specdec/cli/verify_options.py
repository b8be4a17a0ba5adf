"""The options of `verify`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdec.losslessness.levels import SECONDS


class WantedLevel(StrEnum):
    """What `--level` takes."""

    EXACT = "exact"
    BITWISE = "bitwise"
    RUNTIME = "runtime"
    SAMPLED = "sampled"
    ALL = "all"


DEFAULTS = ", ".join(f"{level.value} {seconds:g}" for level, seconds in SECONDS.items())

Strategy = Annotated[
    str | None, typer.Argument(help="A shipped strategy's name, or a path to a .yaml file.", show_default=False)
]
WhichLevel = Annotated[WantedLevel, typer.Option(help="Which levels to prove.")]
Target = Annotated[
    str | None,
    typer.Option("--target", "--model", metavar="PATH", help="A model folder or hub id instead of the strategy's target."),
]
Budget = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="Size of the proof, for all levels together.", show_default=DEFAULTS),
]
Report = Annotated[Path | None, typer.Option(metavar="DIR", help="Write report.json, report.md and report.png.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the runtime, bitwise and sampled levels.")]
Function = Annotated[
    str | None,
    typer.Option(
        "--callable", metavar="MODULE:FUNCTION", help="Test a function (prompt ids, n, seed) -> new ids instead of a strategy."
    ),
]
Peer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Test an engine on the target: transformers, transformers-lookup[-N], transformers-assisted, transformers-mtp; "
        "or an OpenAI-compatible endpoint, as http://HOST/v1#MODEL.",
    ),
]
Assistant = Annotated[str | None, typer.Option(metavar="PATH", help="Draft model of the engine.")]
Vocab = Annotated[
    int | None, typer.Option(min=2, max=16, help="Vocabulary of the stand-in models (exact).", show_default="4, 2 and 12")
]
Depth = Annotated[
    int | None, typer.Option(min=1, max=64, help="Levels of a draft to enumerate (exact).", show_default="all that fit")
]
Models = Annotated[
    int | None, typer.Option(min=1, max=100, help="Stand-in models per size (exact).", show_default="8 or fewer")
]
CertificateFile = Annotated[
    Path | None,
    typer.Option("--certificate", "-o", metavar="FILE", help="Write a certificate: what was proved and measured, of what."),
]
