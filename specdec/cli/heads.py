"""`head show`: what a draft head is, and which targets it fits. `head convert`: into another layout."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specdec.cli.terminal import Json, TargetModel, TrustRemoteCode, guarded, print_json, print_notes, print_table
from specdec.compose import check, load
from specdec.errors import CheckpointError, SpecError
from specdec.files.paths import expanded, is_file, is_folder, is_same, matching
from specdec.heads.checkpoint_path import SHIPPED, locate_head
from specdec.heads.formats.config_file import read_config
from specdec.heads.formats.layouts import PUBLISHED, Layout, needs_target, write_head
from specdec.heads.formats.reading import read_head
from specdec.heads.summary import HeadSummary, summarize
from specdec.interfaces.compatibility import PADDING

Head = Annotated[
    str, typer.Argument(help="A folder with a head's config.json, a hub id, or the kind of a shipped head.", show_default=False)
]
Layers = Annotated[
    str | None,
    typer.Option("--layers", metavar="A,B,C", help="Layers that an EAGLE-3 head fuses, where it names none."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Show and convert draft heads.", no_args_is_help=True, rich_markup_mode=None)
    group.command("show", help="What a head is, its sizes, and which targets it fits.")(show)
    group.command("convert", help="Write a head in another layout, for another engine or for specdec.")(convert)
    app.add_typer(group, name="head")


@guarded
def show(
    head: Head, target: TargetModel = None, trust: TrustRemoteCode = None, layers: Layers = None, as_json: Json = False
) -> None:
    """A folder with missing, superfluous or misshapen tensors is an error that lists all of them."""
    found = summarize(_folder(head), _layers(layers))
    if target is not None:
        _check_fit(found, target, layers, trust)
    if as_json:
        width, vocabulary = found.config.made_for
        fits = {"hidden_size": width, "vocab_size": [vocabulary, vocabulary + PADDING - 1]}
        print_json({**asdict(found), "folder": str(found.folder), "config": found.config.model_dump(mode="json"), "fits": fits})
        return
    print_table(f"{found.folder}: {found.kind}, in the layout '{found.layout}'", ["what", "value"], _rows(found))
    if target is not None:
        print_notes([f"it fits {target}"])


def _rows(found: HeadSummary) -> list[list[str]]:
    width, vocabulary = found.config.made_for
    trained_with = found.config.trained_with
    rows = [
        ["parameters", f"{found.parameters:,} ({found.dtype}); {found.megabytes:.1f} MB of files"],
        ["embeddings", "its own" if found.embedding else "the target's"],
        ["LM head", "its own" if found.lm_head else "the target's"],
        *([name, str(value)] for name, value in found.sizes.items()),
        ["fits targets", f"{width:,} wide, with a vocabulary of {vocabulary:,} to {vocabulary + PADDING - 1:,} tokens"],
    ]
    return rows if trained_with is None else [*rows, ["trained with", trained_with.target]]


@guarded
def convert(
    head: Head,
    output: Annotated[Path, typer.Argument(help="Folder to write; it may not hold a head yet.", show_default=False)],
    to: Annotated[
        Layout | None, typer.Option("--to", help="Layout; unset: the one that others read.", show_default=False)
    ] = None,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    max_positions: Annotated[
        int | None, typer.Option("--max-positions", min=1, help="Positions that the head was made for, where it does not say.")
    ] = None,
    layers: Layers = None,
) -> None:
    """Heads that borrow the target's LM head or embeddings need --target for layouts that hold them."""
    folder = _folder(head)
    _check_output(output, folder)
    checkpoint = read_head(folder, config_file=read_config(folder), layers=_layers(layers))
    layout = PUBLISHED[checkpoint.config.kind] if to is None else to
    loaded = None
    if needs_target(checkpoint, layout):
        if target is None:
            raise SpecError(f"layout '{layout}' writes out what the head borrows from its target; --target MODEL would give it")
        loaded = load("plain", target=target, trust_remote_code=trust).target
    write_head(output, checkpoint, layout, target=loaded, made_for=target, max_positions=max_positions)
    size = sum(path.stat().st_size for path in matching(output, "*.safetensors")) / 1e6
    typer.echo(f"{output}: {checkpoint.config.kind}, in the layout '{layout}', {size:.1f} MB")


def _folder(head: str) -> Path:
    """The folder of a head. Raises CheckpointError."""
    if is_file(SHIPPED / head / "config.json") and not is_folder(expanded(head)):
        return SHIPPED / head
    if (found := locate_head(head, "eagle", download=True)) is None:
        raise CheckpointError(f"'{head}' is neither a folder nor a hub repository within reach")
    return found


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise SpecError(f"--layers {text}: expected whole numbers, such as 2,15,27") from error


def _check_fit(found: HeadSummary, target: str, layers: str | None, trust: bool | None) -> None:
    """Raise IncompatibleParts, or TargetMismatch, for a target that the head does not fit; nothing is loaded."""
    drafter = {"use": found.kind, "head": str(found.folder)}
    more = {} if layers is None else {"layers": _layers(layers)}
    parts = {"drafter": {**drafter, **more}, "tree": {"use": "chain"}, "verifier": {"use": "match"}, "name": "head"}
    check(parts, target=target, trust_remote_code=trust)


def _check_output(output: Path, source: Path) -> None:
    """Raise SpecError for a folder that holds a head, or is none."""
    if is_file(output):
        raise SpecError(f"{output}: is a file; expected the name of a folder to write")
    if is_same(output, source) or matching(output, "*.safetensors") or is_file(output / "config.json"):
        raise SpecError(f"{output}: holds a head, which would be replaced; give another folder")
