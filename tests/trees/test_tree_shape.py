import ast
from pathlib import Path

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specdec
from specdec.errors import SpecError
from specdec.trees.tree_shape import MAX_NODES, TreeShape, from_graph, to_graph


@st.composite
def shapes(draw):
    """Random trees of up to 20 nodes: each node hangs below an earlier one, as its next rank."""
    paths, counts = [()], {(): 0}
    for _ in range(draw(st.integers(0, 20))):
        parent = draw(st.sampled_from(paths))
        paths.append((*parent, counts[parent]))
        counts[parent] += 1
        counts[paths[-1]] = 0
    return TreeShape(tuple(paths[1:]))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (((0,), (1, 0)), r"path \[1, 0\]: its parent \[1\] is missing"),
        (((0, 0), (0,)), r"path \[0, 0\]: its parent \[0\] is missing or comes after"),
        (((0,), (2,)), r"path \[2\]: its sibling \[1\] of lower rank is missing"),
        (((1,), (0,)), r"path \[1\]: its sibling \[0\]"),
        (((0,), (0,)), r"path \[0\]: occurs twice"),
        (((),), r"path \[\]: a path is a list of at least one rank"),
        (((-1,),), r"path \[-1\]: a path is"),
        (((True,),), r"path \[True\]: a path is"),
    ],
)
def test_a_shape_that_breaks_a_rule_is_refused_by_path(paths, message):
    with pytest.raises(SpecError, match=message):
        TreeShape(paths)


@given(shapes(), st.randoms(use_true_random=False))
def test_paths_in_any_order_make_the_same_tree_and_a_right_order_is_kept(shape, random):
    mixed = list(shape.paths)
    random.shuffle(mixed)
    assert set(TreeShape.of(mixed).paths) == set(shape.paths)
    assert TreeShape.of(shape.paths) == shape


@given(shapes(), st.integers(0, 25), st.integers(0, 6))
def test_a_cut_is_a_tree_within_its_limits_that_keeps_the_first_paths(shape, nodes, depth):
    cut = shape.cut(nodes=nodes, depth=depth)
    assert cut.num_nodes <= nodes
    assert cut.depth <= depth
    assert cut.paths == tuple(path for path in shape.paths if len(path) <= depth)[:nodes]


@given(shapes())
def test_child_counts_rebuild_the_tree(shape):
    counts = shape.child_counts()
    assert {(*parent, rank) for parent, count in counts.items() for rank in range(count)} == set(shape.paths)
    assert sum(shape.level_sizes()) == shape.num_nodes
    assert shape.is_chain == all(count == 1 for count in counts.values())


@given(shapes())
def test_a_graph_gives_the_shape_back(shape):
    graph = to_graph(shape)
    assert networkx.is_arborescence(graph)
    assert graph.number_of_nodes() == shape.num_nodes + 1
    assert from_graph(graph) == shape


def test_a_graph_without_ranks_is_read_in_edge_order():
    graph = networkx.DiGraph([("root", "a"), ("root", "b"), ("b", "c")])
    assert from_graph(graph).paths == ((0,), (1,), (1, 0))


@pytest.mark.parametrize("edges", [[(0, 1), (1, 0)], [(0, 1), (2, 3)], [(0, 2), (1, 2)], []])
def test_a_graph_that_is_no_tree_is_refused(edges):
    with pytest.raises(SpecError, match="not a tree"):
        from_graph(networkx.DiGraph(edges))


def test_k_ary_trees_count_as_their_widths_say():
    assert TreeShape.k_ary([4, 2, 1]).level_sizes() == (4, 8, 8)
    assert TreeShape.chain(3).paths == ((0,), (0, 0), (0, 0, 0))


def test_a_tree_that_is_far_too_large_is_refused_before_it_is_made():
    with pytest.raises(SpecError, match=str(MAX_NODES)):
        TreeShape.k_ary([1000, 1000, 1000])


@pytest.mark.parametrize(
    "module", ["trees/tree_shape", "trees/tree_file", "tree_builders/fixed", "tree_builders/sampled", "tree_builders/dynamic"]
)
def test_nothing_in_the_decode_loop_loads_networkx(module):
    source = Path(specdec.__file__).parent / f"{module}.py"
    imports = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    assert not any("networkx" in ast.unparse(node) for node in imports)
