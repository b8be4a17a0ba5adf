import re
from pathlib import Path

import pytest

from specdec.errors import SpecError
from specdec.tree_builders.shape_options import one_shape
from specdec.tree_search.tree_lists import from_choices, read_choices
from specdec.trees.tree_file import Prediction, TreeFile, format_tree, parse_tree, read_tree
from specdec.trees.tree_shape import TreeShape

TREES = Path(__file__).parents[2] / "trees"
HEAD = "name: t\nsource: here\n"


@pytest.mark.parametrize("path", sorted(TREES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_are_named_as_their_file_say_a_source_and_survive_a_round_trip(path):
    tree = read_tree(path)
    assert tree.name == path.stem
    assert parse_tree(format_tree(tree), origin="copy") == tree


def test_the_readme_table_gives_the_nodes_of_every_shipped_file_level_by_level():
    text = (TREES / "README.md").read_text()
    for path in TREES.glob("*.yaml"):
        shape = read_tree(path).shape
        row = next(line for line in text.splitlines() if line.startswith("|") and path.stem in line.split("|")[1])
        if shape.is_chain:
            assert str(shape.num_nodes) in row
        else:
            assert f"{shape.num_nodes}: {', '.join(map(str, shape.level_sizes()))} |" in row


def test_the_eagle_tree_is_the_published_one():
    shape = read_tree(TREES / "eagle-25.yaml").shape
    assert shape.level_sizes() == (4, 8, 8, 3, 2)
    leaves = [p for p in shape.paths if p not in shape.child_counts()]
    assert (len(leaves), len(shape.child_counts()) - 1) == (15, 10)


def test_the_medusa_tree_has_63_nodes_in_its_published_order():
    shape = read_tree(TREES / "medusa-63.yaml").shape
    assert shape.num_nodes == 63
    assert shape.paths[:6] == ((0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0))
    assert max(map(max, shape.paths)) == 9


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("chain: 2", ((0,), (0, 0))),
        ("widths: [2, 1]", ((0,), (1,), (0, 0), (1, 0))),
        ("paths: [[0], [0, 0], [1]]", ((0,), (0, 0), (1,))),
    ],
)
def test_each_form_gives_its_shape(text, paths):
    assert parse_tree(HEAD + text, origin="f").shape.paths == paths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "paths:\n  - [0]\n  - [1, 0]\n", r"f:5: paths\.1: path \[1, 0\]: its parent \[1\]"),
        (HEAD + "paths:\n  - [0]\n  - zero\n", r'f:5: paths\.1: got "zero", expected a list'),
        (HEAD + "paths:\n  - [0]\n  - [x]\n", r'f:5: paths\.1\.0: got "x", expected a whole number'),
        (HEAD + "paths: []", r"f:3: paths: got \[\], expected a list of at least 1"),
        (HEAD + "paths:", "f:1: exactly one of paths, chain and widths is needed; got none"),
        (HEAD + "chain: 0", "f:3: chain: got 0, expected at least 1"),
        (HEAD + "chain: 5000", "f:3: chain: got 5000, expected at most 4096"),
        (HEAD + "chain: 2.5", "f:3: chain: got 2.5, expected a whole number"),
        (HEAD + "chain: true", "f:3: chain: got true, expected a whole number"),
        (HEAD + "widths: [2, -1]", r"f:3: widths\.1: got -1, expected at least 1"),
        (HEAD + "widths: [100, 100]", "f:3: widths: .* more than 4096"),
        (HEAD + "width: [2]", "f:3: width: unknown key; did you mean 'widths'"),
        (HEAD + "chain: 2\nwidths: [1]", "f:1: exactly one of paths, chain and widths is needed; got chain and widths"),
        (HEAD, "f:1: exactly one of .*; got none"),
        (HEAD + "name: u\nchain: 1", "f:3: name: given twice; first at line 1"),
        ("name: t\nchain: 1", "f:1: source: is required"),
        ("name: [t]\nsource: s\nchain: 1", "f:1: name: got .*, expected text"),
        (
            HEAD + "predicted: {tau: 2}\nchain: 1",
            r"f:3: predicted\.speedup: is required: .*\nf:3: predicted\.basis: is required: ",
        ),
        (HEAD + "predicted: {tau: 0, speedup: 1, basis: b}\nchain: 1", r"f:3: predicted\.tau: got 0, expected greater than 0"),
        (HEAD + "predicted: {tau: .inf, speedup: 1, basis: b}\nchain: 1", r"f:3: predicted\.tau: got \.inf, expected a finite"),
        (
            HEAD + f"predicted: {{tau: {'9' * 400}, speedup: 1, basis: b}}\nchain: 1",
            r"f:3: predicted\.tau: got 9+\.\.\., expected a",
        ),
        (
            HEAD + f"predicted: {{tau: {'9' * 5000}, speedup: 1, basis: b}}\nchain: 1",
            r"f:3: predicted\.tau: got a number of 5000",
        ),
        (HEAD + "predicted: {1: 2, tau: 3}\nchain: 1", r"f:3: predicted\.1: unknown key"),
        (HEAD + "predicted: {tau: 2, speedup: x, basis: b}\nchain: 1", r'f:3: predicted\.speedup: got "x", expected a number'),
        (HEAD + "predicted: {tau: 2, speedup: 1, basis: 3}\nchain: 1", r"f:3: predicted\.basis: got 3, expected text"),
        ("- 1", "f:1: got a list, expected a mapping"),
        ("", "f:1: name: is required"),
        ("name: t\nsource: [", "f:2: not YAML"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text, message):
    with pytest.raises(SpecError, match=message):
        parse_tree(text, origin="f")


def test_all_mistakes_of_a_file_are_reported_at_once():
    text = "nmae: t\nsource: 3\npredicted: {tau: -1, speedup: 1, basis: b}\npaths:\n  - [0]\n  - [2]\n  - [1, 0]\n  - x\n"
    with pytest.raises(SpecError) as error:
        parse_tree(text, origin="f")
    places = sorted(line.partition(": ")[0] for line in str(error.value).splitlines())
    assert places == ["f:1", "f:1", "f:2", "f:3", "f:6", "f:7", "f:8"]


@pytest.mark.parametrize("name", ["0998", "1e3", "no", "12:30", "~", "true", "a\nb", ".5", "- x", "null"])
def test_every_name_is_read_back_as_it_was_written(name):
    tree = TreeFile(name, "s", TreeShape.chain(2))
    assert parse_tree(format_tree(tree), origin="f") == tree


def test_a_file_that_cannot_be_read_is_an_error_with_its_path(tmp_path):
    with pytest.raises(SpecError, match=r"missing\.yaml: cannot be read"):
        read_tree(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"binary\.yaml: not UTF-8 text"):
        read_tree(tmp_path / "binary.yaml")


@pytest.mark.parametrize("shape", [TreeShape.chain(4), TreeShape.k_ary([3, 1, 2]), TreeShape(((0,), (0, 0), (1,)))])
def test_what_is_written_is_read_back(shape, tmp_path):
    tree = TreeFile("x: y", 'a "quoted" source\nover two lines, é', shape)
    (tmp_path / "x.yaml").write_text(format_tree(tree), encoding="utf-8")
    assert read_tree(tmp_path / "x.yaml") == tree
    searched = TreeFile("x", "a search", shape, Prediction(tau=2.5, speedup=1.25, basis="acceptance of x; costs of y"))
    assert parse_tree(format_tree(searched), origin="f") == searched


def test_lists_of_other_projects_keep_their_order_where_it_is_right_and_are_mended_where_not():
    assert from_choices([[0], [0, 0], [1]]).paths == ((0,), (0, 0), (1,))
    assert from_choices([[0, 0], [1], [0]]).paths == ((0,), (1,), (0, 0))


@pytest.mark.parametrize(
    "text", ["[[0], [0, 0], [1]]", "[(0,), (0, 0), (1,)]", "other = 3\nmy_tree = [[0], [0, 0], [1]]  # note\n"]
)
def test_json_python_literals_and_assignments_are_read(text):
    assert read_choices(text, variable="my_tree" if "my_tree" in text else None).paths == ((0,), (0, 0), (1,))


def test_the_first_list_of_a_python_file_is_taken_without_a_name_and_nothing_is_executed():
    assert read_choices("a = [[0]]\nb = [[0], [1]]\nraise SystemExit").num_nodes == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = [[0]]", "no list called 'b'; names found: a"),
        ("\n\nb = [[0], [2]]", r"line 1: path \[2\]"),
        ("b = open('x')", "line 1: a list of lists"),
        ("b = 3", "line 1: a list of lists"),
        ("b = [[0]", "neither JSON nor Python"),
        ("", "no list called 'b'; names found: none"),
        ("-" * 100_000 + "1", "neither JSON nor Python: it is nested too deeply"),
        ("b = [[" + "1+" * 100_000 + "1]]", "it is nested too deeply"),
        ("b = [['\ud800']]", "neither JSON nor Python: .*surrogates"),
        ("b = [\0]", "neither JSON nor Python: .*null bytes"),
        ("[" * 100_000, "neither JSON nor Python"),
    ],
)
def test_a_foreign_list_that_cannot_be_read_says_where(text, message):
    with pytest.raises(SpecError, match=re.compile(message)):
        read_choices(text, variable="b")


def test_options_need_exactly_one_source_of_the_shape(tmp_path):
    with pytest.raises(SpecError, match="exactly one of file, paths and widths; got none"):
        one_shape(file=None, paths=None, widths=None)
    with pytest.raises(SpecError, match="got file and widths"):
        one_shape(file="a", paths=None, widths=[1])
    assert one_shape(file="just-a-name", paths=None, widths=None) is None
    (tmp_path / "a.yaml").write_text(format_tree(TreeFile("a", "b", TreeShape.chain(2))))
    assert one_shape(file=str(tmp_path / "a.yaml"), paths=None, widths=None) == TreeShape.chain(2)
    assert one_shape(file=None, paths=[[0], [1]], widths=None) == one_shape(file=None, paths=None, widths=[2])


@pytest.mark.parametrize(
    "text",
    ["a: &a 1", "chain: !!int abc", "chain: " + "1" * 5000, "paths: " + "[" * 5000, "source: 2020-13-45"],
    ids=lambda t: t[:12],
)
def test_yaml_that_no_tree_needs_is_refused(text):
    with pytest.raises(SpecError, match=r"^f"):
        parse_tree(f"name: t\n{text}\n", origin="f")
