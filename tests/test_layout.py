"""The package stays easy to find one's way in: few names at the top, small modules, short functions, short import chains."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from specdec.interfaces.declarations import Kind
from specdec.plugins.loading import load_registry

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specdec"

MODULES_AT_THE_TOP, FOLDERS_AT_THE_TOP = 4, 24
LONGEST_MODULE, SHORTEST_MODULE, LONGEST_FUNCTION = 250, 30, 40
LONGEST_CHAIN = 22
TIERS = 13

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[str, str]:
    """The text of every module, by its dotted name; a package's is that of its __init__."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in sources().items()}


@cache
def imports() -> dict[str, set[str]]:
    """By module, those of the package that it imports, in functions too; what only a type checker imports is left out."""
    return {name: {target for target in _imported(tree) if target != name} for name, tree in trees().items()}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _imported(child)
        return
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "specdec":
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            yield submodule if submodule in sources() else node.module
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in sources())
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def longest_chain() -> list[str]:
    """The longest way down from one module to the next that it imports."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports()).static_order():
        chains[name] = [name, *max((chains[below] for below in imports()[name]), key=len, default=[])]
    return max(chains.values(), key=len)


def lines_by_module() -> dict[str, int]:
    return {name: len(text.splitlines()) for name, text in sources().items()}


def modules_of_parts() -> set[str]:
    parts = load_registry(disabled="*").parts
    return {part.cls.__module__ for kind in Kind for part in parts[kind].values()}


def test_the_top_of_the_package_has_few_names():
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert len(modules) <= MODULES_AT_THE_TOP, modules
    assert len(folders) <= FOLDERS_AT_THE_TOP, folders


def test_no_module_is_too_long_to_be_read_at_once():
    assert {name: lines for name, lines in lines_by_module().items() if lines > LONGEST_MODULE} == {}


def test_no_module_is_so_short_that_it_belongs_to_a_neighbour():
    packages = {name for name in sources() if (ROOT / name.replace(".", "/")).is_dir()}
    exempt = packages | {"specdec.__main__"} | modules_of_parts()
    short = {name: lines for name, lines in lines_by_module().items() if lines < SHORTEST_MODULE}
    assert {name: lines for name, lines in short.items() if name not in exempt} == {}


def test_no_function_is_too_long_to_be_seen_at_once():
    functions = [(name, node) for name, tree in trees().items() for node in ast.walk(tree) if isinstance(node, Functions)]
    lengths = {f"{name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1 for name, node in functions}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_no_module_imports_itself_by_way_of_others():
    try:
        circle: list[str] = []
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_the_longest_chain_of_imports_stays_short_wherever_they_stand():
    chain = longest_chain()
    assert len(chain) <= LONGEST_CHAIN, chain


def test_imports_in_functions_count_and_those_of_type_checkers_do_not():
    text = "if TYPE_CHECKING:\n    from specdec.errors import SpecError\ndef f():\n    from specdec.interfaces import parts\n"
    assert list(_imported(ast.parse(text))) == ["specdec.interfaces.parts"]


def test_the_linter_keeps_thirteen_tiers_below_the_entry_point():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert layers[0] == "specdec.__main__"
    assert len(layers[1:]) == TIERS


def test_users_and_authors_have_one_door_each_that_says_what_it_offers():
    for name in ("specdec", "specdec.authoring"):
        door = importlib.import_module(name)
        assert len(door.__all__) == len(set(door.__all__)) > 5
        assert [one for one in door.__all__ if not hasattr(door, one)] == []
