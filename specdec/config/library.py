"""The files that ship with specdec and with plug-ins: strategies and tree shapes, by name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec.errors import PluginError, SpecError, UnknownPart, did_you_mean
from specdec.files.paths import expanded, is_file, is_folder, matching
from specdec.plugins.registry import Registry

SUFFIXES = (".yaml", ".yml")

FOREIGN = (".json", ".py", ".txt")
"""Endings of files in which other projects write trees."""


@dataclass(frozen=True, slots=True)
class Library:
    """Folders with `strategies/` and `trees/`; the first is specdec's own."""

    folders: tuple[Path, ...]

    def strategies(self) -> Mapping[str, Path]:
        """All strategies by name. Raises PluginError if two folders have one of the same name."""
        return self._files("strategies")

    def trees(self) -> Mapping[str, Path]:
        """All tree shapes by name. Raises PluginError if two folders have one of the same name."""
        return self._files("trees")

    def check(self) -> None:
        """Raise PluginError where a strategy or a tree has a name that is taken already."""
        self.strategies()
        self.trees()

    def find_strategy(self, name: str) -> Path:
        """The file of a strategy's name, or of a path to a .yaml file. Raises UnknownPart or SpecError."""
        return _find(name, self.strategies(), "strategy", "strategies", (Path(),))

    def find_tree(self, name: str, folders: Sequence[Path] = ()) -> Path:
        """The file of a tree's name, or of a path: from one of the folders, else from here. Raises UnknownPart or SpecError."""
        return _find(name, self.trees(), "tree", "trees", (*folders, Path()))

    def _files(self, kind: str) -> Mapping[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            for path in (p for p in matching(folder / kind, "*") if p.suffix in SUFFIXES):
                if path.stem in found:
                    raise PluginError(f"{found[path.stem]} and {path} both bring '{path.stem}' to the {kind}")
                found[path.stem] = path
        return found


def shipped_folder() -> Path:
    """The folder of specdec's own `strategies/` and `trees/`: inside the installed package, else the checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_library"
    return inside if is_folder(inside) else package.parent


def library(more: Iterable[Path] = ()) -> Library:
    """Our own folder and those of plug-ins."""
    return Library((shipped_folder(), *more))


def _find(name: str, known: Mapping[str, Path], kind: str, plural: str, folders: tuple[Path, ...]) -> Path:
    if name in known:
        return known[name]
    if kind == "tree" and Path(name).suffix in FOREIGN:
        raise SpecError(f"{name}: a tree file is a .yaml file; `specdec tree convert` makes one of other projects' trees")
    if name.endswith(SUFFIXES) or "/" in name:
        for folder in folders:
            path = folder / expanded(name)
            if is_file(path):
                return path
        raise SpecError(f"{name}: no such file; a {kind} is named without .yaml, or given as a path to one that exists")
    raise UnknownPart(f"no {kind} is called '{name}'{did_you_mean(name, known, listing=f'shipped {plural}')}")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The parts and files that specs may name.

    trust_remote_code: whether whoever runs the specs consents to code that models bring; a spec cannot.
    """

    registry: Registry
    library: Library
    trust_remote_code: bool = False
