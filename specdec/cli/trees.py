"""`tree show`: a tree drawn. `tree convert`: to and from other projects' formats. `tree search`: the best one for a machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.tree import Tree

from specdec.cli.search import search
from specdec.cli.terminal import Json, guarded, print_json
from specdec.config.catalog import load_catalog
from specdec.errors import SpecError, UnknownPart
from specdec.files.paths import expanded, is_file
from specdec.tree_search.formats import TreeFormat, guess_format, read_foreign, write_foreign
from specdec.trees.tree_file import TreeFile, read_tree
from specdec.trees.tree_shape import RankPath

trees = typer.Typer(help="Show, convert and search tree shapes.", no_args_is_help=True, rich_markup_mode=None)

ShownTree = Annotated[str, typer.Argument(help="A shipped tree's name, or a path to a .yaml file.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    trees.command("search", help="Find the fastest tree for measured acceptance and costs.")(search)
    app.add_typer(trees, name="tree")


@trees.callback()
def _group() -> None:
    """Show, convert and search tree shapes."""


@trees.command("show", help="Draw a tree shape: ranks, depth, node counts.")
@guarded
def show(
    tree: ShownTree,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Draw it to an .svg, .png or .pdf file.")
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Shade nodes by how often this profile reaches them (with --output).")
    ] = None,
    json: Json = False,
) -> None:
    """Draw a tree shape."""
    file = read_tree(load_catalog().library.find_tree(tree))
    shape = file.shape
    if acceptance is not None and output is None:
        raise SpecError("--acceptance shades a picture; --output names its file")
    if output is not None:
        _draw(file, output, acceptance)
    if json:
        facts = {"name": file.name, "source": file.source, "nodes": shape.num_nodes, "depth": shape.depth}
        predicted = None if file.predicted is None else {"tau": file.predicted.tau, "speedup": file.predicted.speedup}
        print_json({**facts, "nodes_by_level": shape.level_sizes(), "paths": shape.paths, "predicted": predicted})
    elif output is None:
        _print(file)


def _print(file: TreeFile) -> None:
    shape = file.shape
    levels = " ".join(map(str, shape.level_sizes()))
    root = Tree(f"{file.name}: {shape.num_nodes} nodes, depth {shape.depth}, by level {levels}")
    branches: dict[RankPath, Tree] = {(): root}
    for path in sorted(shape.paths):
        branches[path] = branches[path[:-1]].add(f"rank {path[-1]}")
    console = Console(markup=False, highlight=False)
    console.print(root)
    console.print(f"source: {file.source}")
    if file.predicted is not None:
        console.print(f"predicted: tau {file.predicted.tau:.3f}, speed-up {file.predicted.speedup:.3f}; {file.predicted.basis}")


def _draw(file: TreeFile, output: Path, acceptance: Path | None) -> None:
    from specdec.performance.acceptance_profile import read_acceptance
    from specdec.tree_search.pictures import draw_tree

    title = f"{file.name}: {file.shape.num_nodes} nodes, depth {file.shape.depth}"
    children = None if acceptance is None else read_acceptance(acceptance).rates().children
    draw_tree(file.shape, title, output, children)


@trees.command("convert", help="Read or write the tree formats of Medusa, EAGLE, vLLM, Sequoia and UMbreLLa.")
@guarded
def convert(
    tree: Annotated[str, typer.Argument(help="A shipped tree's name, or a file.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    source_format: Annotated[
        TreeFormat | None, typer.Option("--from", help="Format of the source. [default: by its extension and content]")
    ] = None,
    output_format: Annotated[
        TreeFormat | None, typer.Option("--to", help="Format to write. [default: by the extension; .json: choices]")
    ] = None,
    variable: Annotated[
        str | None, typer.Option(help="Name of the list in a Python file with several. [default: the first]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the tree. [default: the file's]")] = None,
) -> None:
    """Choices are Medusa's and EAGLE's lists of rank lists; sequoia is a growmap (.pt), umbrella its JSON."""
    file = _source(tree, source_format, variable)
    kind = output_format or (guess_format(output) if output.suffix != ".json" else TreeFormat.CHOICES)
    write_foreign(TreeFile(name or file.name, file.source, file.shape, file.predicted), output, kind)
    typer.echo(f"{output}: {kind.value}, {file.shape.num_nodes} nodes, depth {file.shape.depth}")


def _source(tree: str, kind: TreeFormat | None, variable: str | None) -> TreeFile:
    path = expanded(tree)
    if is_file(path):
        return read_foreign(path, kind or guess_format(path), variable=variable)
    try:
        found = load_catalog().library.find_tree(tree)
    except UnknownPart as error:
        raise SpecError(f"{tree}: no such file, and {error}") from error
    if kind not in (None, TreeFormat.SPECDEC) or variable is not None:
        raise SpecError(f"'{tree}' is a shipped tree; --from and --variable are for files of other projects")
    return read_tree(found)
