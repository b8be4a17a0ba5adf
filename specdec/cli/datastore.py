"""`datastore build`: texts for drafter `suffix` to look up. `datastore successors`: tables for `recycling` to start from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specdec.cli.output_files import claim_outputs
from specdec.cli.terminal import TargetModel, TrustRemoteCode, guarded
from specdec.compose import load
from specdec.drafters.vocabulary import fingerprint
from specdec.errors import TargetMismatch
from specdec.files.reading import text_of
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Target
from specdec.interfaces.text_codec import TextCodec
from specdec.lookup.datastore import build_datastore, write_datastore
from specdec.lookup.successors import SuccessorTables, likeliest, write_successors

Texts = Annotated[
    list[Path],
    typer.Argument(help="Text files, or JSON lines with 'messages', or 'question' and 'answer'.", show_default=False),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.", show_default=False)]

CHUNK = 1024
"""Tokens of one text that the target reads at once."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Datastores and tables for drafters without a model.", no_args_is_help=True, rich_markup_mode=None)
    group.command("build", help="Index texts for drafter 'suffix', which looks up what followed a context.")(build)
    group.command("successors", help="Record the target's likeliest next tokens over texts, for drafter 'recycling'.")(
        successors
    )
    app.add_typer(group, name="datastore")


@guarded
def build(files: Texts, output: Output, target: TargetModel = None, trust: TrustRemoteCode = None) -> None:
    """Of conversations only the answers are indexed, since answers are what drafts continue."""
    claim_outputs(output, inputs=files)
    parts = list(_parts(files))
    model = load("plain", target=target, trust_remote_code=trust).target
    codec = _codec(model)
    texts = [codec.encode(answer, opens=False) for _, answer in parts]
    store = build_datastore(texts, vocabulary=fingerprint(model))
    write_datastore(output, store)
    typer.echo(f"{output}: {len(texts)} texts, {store.num_tokens:,} tokens")


@guarded
def successors(
    files: Texts,
    output: Output,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    candidates: Annotated[int, typer.Option(min=1, max=64, help="Next tokens kept for each context.")] = 8,
) -> None:
    """The target reads each text once, and each answer after its question."""
    claim_outputs(output, inputs=files)
    parts = list(_parts(files))
    model = load("plain", target=target, trust_remote_code=trust).target
    codec, tables, count = _codec(model), SuccessorTables(), 0
    for question, answer in parts:
        prompt = codec.chat(question) if question else []
        ids = [*prompt, *codec.encode(answer, opens=not question)]
        count += _enter(tables, model, ids, first=max(len(prompt) - 1, 0), candidates=candidates)
        typer.echo(f"\r{count:,} tokens", nl=False, err=True)
    typer.echo(err=True)
    write_successors(output, tables, vocabulary=fingerprint(model))
    contexts = " and ".join(f"{len(table):,} of {order}" for order, table in tables.tables.items())
    typer.echo(f"{output}: {count:,} tokens; contexts of tokens: {contexts}")


def _enter(tables: SuccessorTables, model: Target, ids: list[int], *, first: int, candidates: int) -> int:
    """Enter what is likely after each of `ids` from place `first` on; the number of places."""
    room = model.facts.max_positions or len(ids)
    ids = ids[: min(room, CHUNK)]
    if first >= len(ids):
        return 0
    hidden = model.prefill([ids], Features(last=True)).scored[0].hidden.last
    if hidden is None:
        raise TargetMismatch(f"{model.facts.description} gives no hidden states, from which its choices could be read")
    for place in range(first, len(ids)):
        (found,) = likeliest(model.head(hidden[place : place + 1]), candidates)
        tables.enter(ids[max(place - 1, 0) : place + 1], found)
    return len(ids) - first


def _codec(model: Target) -> TextCodec:
    if model.codec is None:
        raise TargetMismatch(f"{model.facts.description} has no tokenizer, so that no text can be read")
    return model.codec


def _parts(files: list[Path]) -> Iterator[tuple[list[dict[str, str]], str]]:
    """(what came before, text) for every text of the files; nothing came before a plain text."""
    from specdec.training.conversations import read_messages

    for path in files:
        if path.suffix == ".jsonl":
            for messages in read_messages(path):
                for turn, message in enumerate(messages):
                    if message["role"] == "assistant":
                        yield messages[:turn], message["content"]
        else:
            yield [], text_of(path)
