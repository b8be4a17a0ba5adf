import json
import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import SpecError
from specdec.tree_search.formats import TreeFormat, from_growmap, guess_format, read_foreign, to_growmap, write_foreign
from specdec.tree_search.tree_lists import read_choices
from specdec.trees.tree_file import TreeFile
from specdec.trees.tree_shape import TreeShape

SHAPE = TreeShape.of([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
UMBRELLA_2X4 = {
    "roots": [[0], [1, 2], [3, 4], [5, 6], [7, 8]],
    "branches": [[2], [1, 1], [1, 1], [1, 1], [0, 0]],
    "Successors": [[1, 2], [3], [4], [5], [6], [7], [8], [], []],
    "depth": [0, 1, 1, 2, 2, 3, 3, 4, 4],
    "size": 9,
}


@st.composite
def shapes(draw):
    paths, counts = [()], {(): 0}
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from(paths))
        paths.append((*parent, counts[parent]))
        counts[parent] += 1
        counts[paths[-1]] = 0
    return TreeShape(tuple(paths[1:]))


@given(shapes())
def test_a_growmap_gives_the_tree_back(shape):
    growmap = to_growmap(shape)
    assert set(from_growmap(growmap, "x").paths) == set(shape.paths)
    assert growmap["size"] == shape.num_nodes + 1
    assert [sum(row) for row in growmap["mask"]] == [depth + 1 for depth in growmap["depth"]]


def test_a_published_growmap_is_read_and_made_again():
    shape = from_growmap(UMBRELLA_2X4, "2x4")
    assert shape.level_sizes() == (2, 2, 2, 2)
    made = to_growmap(shape)
    assert {key: made[key] for key in UMBRELLA_2X4} == UMBRELLA_2X4
    assert made["mask"][5] == [1, 1, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("kind", TreeFormat)
def test_every_format_gives_the_tree_back_and_is_known_by_its_ending(kind, tmp_path):
    endings = {TreeFormat.SPECDEC: "yaml", TreeFormat.SEQUOIA: "pt", TreeFormat.UMBRELLA: "json"}
    path = tmp_path / f"tree.{endings.get(kind, 'txt')}"
    write_foreign(TreeFile("t", "s", SHAPE), path, kind)
    assert set(read_foreign(path, kind).shape.paths) == set(SHAPE.paths)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if kind is not TreeFormat.VLLM:
        assert guess_format(path) is kind
    if kind is TreeFormat.SEQUOIA:
        assert isinstance(torch.load(path, weights_only=True)["mask"], torch.Tensor)


def test_vllm_reads_tuples_of_ranks(tmp_path):
    write_foreign(TreeFile("t", "s", SHAPE), tmp_path / "t.txt", TreeFormat.VLLM)
    assert read_choices((tmp_path / "t.txt").read_text()).paths == SHAPE.paths
    assert (tmp_path / "t.txt").read_text().startswith("[(0,), (1,)")


@pytest.mark.parametrize(
    ("successors", "message"),
    [
        ([[1], [0]], "child 0, which is no other node"),
        ([[1, 1], []], "has two parents"),
        ([[1], [], []], "node 2 is nobody's child"),
        ([[3], []], "child 3"),
        ([[True], []], "child True"),
        ([], "a growmap of 0 nodes"),
        ("x", "expected a list of lists"),
        ([1], "expected a list of lists"),
    ],
)
def test_a_growmap_that_is_no_tree_is_refused(successors, message):
    with pytest.raises(SpecError, match=message):
        from_growmap({"Successors": successors}, "f")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_a_torch_file_that_would_execute_something_is_refused_and_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"Successors": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for name in ("evil.pt", "plain.pt", "junk.pt", "missing.pt"):
        with pytest.raises(SpecError, match=name):
            read_foreign(tmp_path / name, TreeFormat.SEQUOIA)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_torch_or_json_file_of_something_else_says_so(tmp_path):
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(SpecError, match="holds list"):
        read_foreign(tmp_path / "list.pt", TreeFormat.SEQUOIA)
    (tmp_path / "x.json").write_text(json.dumps([[0]]))
    with pytest.raises(SpecError, match="holds list"):
        read_foreign(tmp_path / "x.json", TreeFormat.UMBRELLA)
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(SpecError, match="no JSON"):
        read_foreign(tmp_path / "y.json", TreeFormat.UMBRELLA)
