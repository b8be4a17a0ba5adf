"""`list`, `show`, `check` and `schema`: what there is and what a spec says; no weights are read."""

import inspect
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from specdec.cli.terminal import Json, Settings, TargetModel, TrustRemoteCode, fail, guarded, print_json, print_table
from specdec.compose import resolve
from specdec.config.catalog import load_catalog
from specdec.config.json_schema import spec_schema
from specdec.config.library import Catalog
from specdec.config.part_page import part_page
from specdec.errors import SpecdecError, SpecError, did_you_mean
from specdec.files.yaml_document import read_file
from specdec.interfaces.declarations import Kind
from specdec.trees.tree_file import read_tree

HEADINGS = ("option", "type", "default", "range", "description")
"""Of the options of a part."""


class Listed(StrEnum):
    """What `list` can list."""

    STRATEGIES = "strategies"
    TARGETS = "targets"
    DRAFTERS = "drafters"
    BUILDERS = "builders"
    VERIFIERS = "verifiers"
    TREES = "trees"


LEFT_OUT = "plug-ins left out"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list", help="List strategies, parts and tree shapes, including those of plug-ins.")(list_command)
    app.command("show", help="Print a strategy with every default filled in, or the options of a part: show drafter ngram.")(
        show
    )
    app.command("check", help="Check the keys, names and fit of strategies, without loading weights or downloading.")(
        check_command
    )
    app.command("schema", help="Print the JSON Schema of a strategy file, including installed plug-ins.")(schema)


@guarded
def list_command(what: Annotated[Listed | None, typer.Argument(show_default=False)] = None, json: Json = False) -> None:
    """List strategies, parts and tree shapes."""
    catalog = load_catalog()
    tables = {kind.value: _rows(catalog, kind) for kind in ([what] if what is not None else list(Listed))}
    if catalog.registry.broken:
        tables[LEFT_OUT] = [{"name": name, "what it is": reason} for name, reason in catalog.registry.broken.items()]
    if json:
        print_json(tables)
        return
    for number, (title, rows) in enumerate(tables.items()):
        if number:
            typer.echo()
        headings = ["name", *(h for h in ("what it is", "from") if any(h in row for row in rows))]
        print_table(title, headings, [[str(row.get(h, "")) for h in headings] for row in rows])


def _rows(catalog: Catalog, what: Listed) -> list[dict[str, Any]]:
    if what is Listed.STRATEGIES:
        return [_strategy_row(name, path) for name, path in catalog.library.strategies().items()]
    if what is Listed.TREES:
        return [_tree_row(name, path) for name, path in catalog.library.trees().items()]
    kind = next(k for k in Kind if k.plural == what.value)
    return [
        {"name": name, "what it is": (inspect.getdoc(r.cls) or "").partition("\n")[0], "from": r.package}
        for name, r in catalog.registry.parts[kind].items()
    ]


def _tree_row(name: str, path: Path) -> dict[str, Any]:
    try:
        tree = read_tree(path)
    except SpecdecError as error:
        return {"name": name, "what it is": str(error)}
    nodes, depth = tree.shape.num_nodes, tree.shape.depth
    return {"name": name, "what it is": f"{nodes} nodes, depth {depth}", "from": tree.source, "nodes": nodes, "depth": depth}


def _strategy_row(name: str, path: Path) -> dict[str, Any]:
    try:
        data = read_file(path).data
    except SpecdecError as error:
        return {"name": name, "what it is": str(error)}
    return {"name": name, "what it is": str(data.get("description", "")), "from": str(data.get("source", ""))}


@guarded
def show(
    strategy: Annotated[
        str,
        typer.Argument(help="A strategy's name or .yaml file, or a kind of part: target, drafter, tree.", show_default=False),
    ],
    name: Annotated[str | None, typer.Argument(help="Of a part of that kind, such as `show drafter ngram`.")] = None,
    settings: Settings = None,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    json: Json = False,
) -> None:
    """Print a strategy with every default filled in, or the options, declaration and source of a part."""
    catalog = load_catalog(trust_remote_code=trust)
    if name is not None or strategy in list(Kind):
        if settings or target:
            raise SpecError("--set and --target change a strategy; a part is shown as it is")
        _show_part(part_page(_kind(strategy), _named(catalog, strategy, name), catalog.registry), json=json)
        return
    resolved = resolve(strategy, catalog, settings=settings, target=target)
    plain_spec = resolved.plain()
    if json:
        print_json(plain_spec)
    else:
        typer.echo(yaml.safe_dump(plain_spec, sort_keys=False, allow_unicode=True, width=100), nl=False)


def _kind(word: str) -> Kind:
    if word not in list(Kind):
        raise SpecError(f"no kind of part is called '{word}'{did_you_mean(word, list(Kind), listing='kinds')}")
    return Kind(word)


def _named(catalog: Catalog, kind: str, name: str | None) -> str:
    if name is None:
        known = ", ".join(sorted(catalog.registry.parts[Kind(kind)]))
        raise SpecError(f"'{kind}' is a kind of part: `specdec show {kind} NAME` shows one; registered: {known}")
    return name


def _show_part(page: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(page)
        return
    typer.echo(f"{page['kind']} {page['name']}: {page['what it is']}")
    for label in ("source", "from"):
        if page[label]:
            typer.echo(f"{label}: {page[label]}")
    rows = [[str(_cell(option, heading)) for heading in HEADINGS] for option in page["options"]]
    if rows:
        typer.echo()
        print_table("options", HEADINGS, rows)
    if page["declares"]:
        typer.echo("\ndeclares, with default options (examples where one is required)")
        typer.echo(yaml.safe_dump(page["declares"], sort_keys=False, default_flow_style=None), nl=False)


def _cell(option: dict[str, Any], heading: str) -> Any:
    value = option[heading]
    if heading == "default":
        return "required" if option["required"] else "unset" if value is None else dumps(value)
    return "" if value is None else value


@guarded
def check_command(
    strategies: Annotated[list[str], typer.Argument(help="Names, or paths to .yaml files.", show_default=False)],
    settings: Settings = None,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    json: Json = False,
) -> None:
    """Check strategies; all mistakes are reported together."""
    catalog = load_catalog(trust_remote_code=trust)
    results: list[dict[str, Any]] = []
    for strategy in strategies:
        try:
            resolved = resolve(strategy, catalog, settings=settings, target=target)
            parts = ", ".join(f"{kind} {part.name}" for kind, part in resolved.parts.items())
            results.append({"strategy": strategy, "fits": True, "parts": parts, "notes": resolved.notes, "errors": []})
        except SpecdecError as error:
            results.append({"strategy": strategy, "fits": False, "errors": str(error).splitlines()})
    if json:
        print_json(results)
    for result in results:
        if not result["fits"]:
            fail("\n".join(result["errors"]))
        elif not json:
            typer.echo("\n  ".join([f"{result['strategy']}: fits ({result['parts']})", *result["notes"]]))
    if not all(result["fits"] for result in results):
        raise typer.Exit(2)


@guarded
def schema(json: Json = False) -> None:
    """Print the JSON Schema of a strategy file; it is JSON with and without --json."""
    print_json(spec_schema(load_catalog().registry))
