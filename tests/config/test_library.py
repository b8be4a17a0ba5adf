"""Finding strategies and trees by name and by path."""

from pathlib import Path

import pytest

from specdec.config.library import Library, library, shipped_folder
from specdec.errors import PluginError, SpecError, UnknownPart


def folder(path: Path, *files: str) -> Path:
    for file in files:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text("name: x\n")
    return path


def test_the_shipped_folder_holds_strategies_and_trees():
    assert {"plain", "ngram-tree", "self-wor"} <= set(library().strategies())
    assert {"eagle-25", "medusa-63"} <= set(library().trees())
    assert (shipped_folder() / "strategies").is_dir()


def test_folders_of_plugins_are_searched_too(tmp_path):
    more = folder(tmp_path, "strategies/mine.yaml", "trees/oak.yml")
    found = library([more])
    assert found.find_strategy("mine") == more / "strategies/mine.yaml"
    assert found.find_tree("oak") == more / "trees/oak.yml"


def test_one_name_in_two_folders_is_refused(tmp_path):
    both = Library((folder(tmp_path / "a", "trees/oak.yaml"), folder(tmp_path / "b", "trees/oak.yaml")))
    with pytest.raises(PluginError, match="both bring 'oak'"):
        both.trees()


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownPart, match="no strategy is called 'plian'; did you mean 'plain'"):
        library().find_strategy("plian")
    with pytest.raises(UnknownPart, match=r"no tree is called 'qqq'; shipped trees: .*eagle-25"):
        library().find_tree("qqq")


def test_a_path_is_a_file_that_exists(tmp_path):
    folder(tmp_path, "own.yaml")
    assert library().find_strategy(str(tmp_path / "own.yaml")) == tmp_path / "own.yaml"
    with pytest.raises(SpecError, match="no such file"):
        library().find_strategy(str(tmp_path / "gone.yaml"))


def test_a_tree_path_starts_at_the_folder_of_the_spec(tmp_path):
    folder(tmp_path, "shapes/oak.yaml")
    assert library().find_tree("shapes/oak.yaml", (tmp_path,)) == tmp_path / "shapes/oak.yaml"


def test_every_shipped_tree_is_called_as_its_file():
    from specdec.trees.tree_file import read_tree

    assert all(read_tree(path).name == name for name, path in library().trees().items())


@pytest.mark.parametrize("name", ["~nobody/x.yaml", "x" * 5000 + ".yaml", "a/" + "x" * 5000, "\0.yaml", "/dev/null/x.yaml"])
def test_a_name_that_no_file_could_have_is_a_file_that_does_not_exist(name):
    with pytest.raises(SpecError, match="no such file"):
        library().find_strategy(name)
    with pytest.raises(SpecError, match="no such file"):
        library().find_tree(name)
