"""Options of `specdec generate`, and what they stand for in the spec and the request."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from specdec.config.resolved_spec import ResolvedSpec
from specdec.decoding.requests import Request
from specdec.errors import SpecError
from specdec.files.json_object import read_json_object
from specdec.files.reading import text_of, unreadable
from specdec.sampling.keyed_noise import request_key

Prompt = Annotated[str | None, typer.Argument(help="The prompt; read from stdin if '-' or absent.", show_default=False)]
PromptFile = Annotated[Path | None, typer.Option(help="Read the prompt from a file.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of new tokens.")]
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
CertificateFile = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="Refuse to run unless this certificate of `specdec verify` fits."),
]
StopIds = Annotated[
    list[int] | None,
    typer.Option("--stop-id", metavar="ID", min=0, help="A token that ends the answer, besides the model's own. Repeatable."),
]
KeepSpecialTokens = Annotated[bool, typer.Option(help="Also show the answer's special tokens.")]
JsonSchema = Annotated[
    Path | None,
    typer.Option("--json-schema", metavar="FILE", help="The answer is JSON that is valid under the schema in this file."),
]
Regex = Annotated[
    str | None, typer.Option("--regex", metavar="PATTERN", help="The answer matches this regular expression as a whole.")
]
AgainstPlain = Annotated[bool, typer.Option("--compare", help="Also run plain decoding, and print the speed-up.")]


def sampling_settings(temperature: float | None, top_k: int | None, top_p: float | None) -> list[str]:
    """The settings of a spec that the options of sampling stand for, of those that are given."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return [f"sampling.{name}={value}" for name, value in given.items() if value is not None]


def _response_format(json_schema: Path | None, regex: str | None) -> dict[str, Any] | None:
    """What the answer must match. Raises SpecError for two formats, and for a file that holds no JSON object."""
    if json_schema is None:
        return None if regex is None else {"type": "regex", "regex": regex}
    if regex is not None:
        raise SpecError("the answer's format is given twice: by --json-schema and by --regex")
    try:
        return {"type": "json_schema", "json_schema": {"schema": read_json_object(json_schema)}}
    except FileNotFoundError as error:
        raise SpecError(f"--json-schema {json_schema}: there is no such file") from error
    except ValueError as error:
        raise SpecError(f"--json-schema {json_schema}: {error}") from error


def request_options(
    resolved: ResolvedSpec,
    max_new_tokens: int,
    seed: int | None,
    stop_ids: Sequence[int] | None,
    wanted: Mapping[str, Any] | None,
    *,
    keep_special_tokens: bool,
) -> dict[str, Any]:
    """The options as those of a request; without a seed, that of the strategy's first request. wanted: the answer's format."""
    return {
        "max_new_tokens": max_new_tokens,
        "seed": request_key(resolved.spec.sampling.seed, 0) if seed is None else seed,
        "stop_ids": tuple(stop_ids or ()),
        "skip_special_tokens": not keep_special_tokens,
        "response_format": wanted,
    }


def prompt_text(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt as it was given, in one of the three ways. Raises SpecError for none, or two."""
    if prompt_file is not None:
        if prompt is not None:
            raise SpecError("the prompt is given twice: as an argument and by --prompt-file")
        return text_of(prompt_file, f"--prompt-file {prompt_file}")
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or sys.stdin.isatty():
        raise SpecError("no prompt: give it as an argument, by --prompt-file, or on stdin")
    try:
        return sys.stdin.read()
    except (OSError, ValueError) as error:
        raise unreadable("stdin", error) from error


def check_before_loading(
    control_tokens: str, trace: Path | None, json_schema: Path | None = None, regex: str | None = None
) -> Mapping[str, Any] | None:
    """The answer's format. Raises SpecError for what is wrong whatever the model is."""
    wanted = _response_format(json_schema, regex)
    Request("", control_tokens=cast(Any, control_tokens), response_format=wanted)
    if trace is not None:
        from specdec.trace.files import check_place

        check_place(trace)
    return wanted
