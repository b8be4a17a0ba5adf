"""`tree show`: a tree file drawn in the terminal."""

from typing import Annotated

import typer
from rich.console import Console
from rich.tree import Tree

from specdec.cli.terminal import Json, guarded, print_json
from specdec.compose import workshop
from specdec.tree_files import read_tree

trees = typer.Typer(help="Look at tree shapes.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(trees, name="tree")


@trees.callback()
def _group() -> None:
    """Look at tree shapes."""


@trees.command("show", help="Draw a tree shape: ranks, depth, node counts.")
@guarded
def show(
    tree: Annotated[str, typer.Argument(help="A shipped tree's name, or a path to a .yaml file.", show_default=False)],
    json: Json = False,
) -> None:
    """Draw a tree shape."""
    file = read_tree(workshop().library.find_tree(tree))
    shape = file.shape
    levels = [sum(len(path) == depth for path in shape.paths) for depth in range(1, shape.depth + 1)]
    if json:
        facts = {"name": file.name, "source": file.source, "nodes": shape.num_nodes, "depth": shape.depth}
        print_json({**facts, "nodes_by_level": levels, "paths": shape.paths})
        return
    root = Tree(f"{file.name}: {shape.num_nodes} nodes, depth {shape.depth}, by level {' '.join(map(str, levels))}")
    branches: dict[tuple[int, ...], Tree] = {(): root}
    for path in sorted(shape.paths):
        branches[path] = branches[path[:-1]].add(f"rank {path[-1]}")
    console = Console(markup=False, highlight=False)
    console.print(root)
    console.print(f"source: {file.source}")
