"""`list`, `show`, `check`, `schema`, `tree show`: what there is, without weights."""

import json

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from specdec.cli import app
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def as_json(*arguments: str):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_list_shows_everything_and_each_kind_alone():
    tables = as_json("list")
    assert set(tables) == {"strategies", "targets", "drafters", "builders", "verifiers", "trees"}
    assert {row["name"] for row in tables["verifiers"]} >= {"match", "point_mass", "chain", "multi_round"}
    for kind, rows in tables.items():
        shown = run("list", kind)
        assert shown.exit_code == 0
        assert all(row["name"] in shown.stdout for row in rows)


def test_list_gives_the_size_of_every_tree():
    rows = {row["name"]: row for row in as_json("list", "trees")["trees"]}
    assert (rows["eagle-25"]["nodes"], rows["eagle-25"]["depth"]) == (25, 5)
    assert rows["medusa-63"]["nodes"] == 63


def test_show_prints_yaml_that_reads_back_as_the_same_strategy(tmp_path):
    shown = run("show", "self-fixed", "--set", "sampling.seed=7")
    path = tmp_path / "shown.yaml"
    path.write_text(shown.stdout)
    catalog = load_catalog()
    assert check(read(str(path), catalog), catalog).plain() == yaml.safe_load(shown.stdout)
    assert as_json("show", "self-fixed")["tree"]["file"] == "eagle-25"
    assert yaml.safe_load(shown.stdout)["sampling"]["seed"] == 7


def test_check_of_all_shipped_strategies_exits_zero():
    result = run("check", *load_catalog().library.strategies())
    assert result.exit_code == 0, result.stderr
    assert "plain: fits (target builtin, drafter none, tree chain, verifier match)" in result.stdout


def test_check_reports_bad_strategies_beside_good_ones_and_exits_two(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("drafter: {use: ngarm}\nverifier: {use: chain}\nsampling: {seed: true}\n")
    result = run("check", "plain", str(bad))
    assert result.exit_code == 2
    assert "plain: fits" in result.stdout
    assert "bad.yaml:1: drafter.use: no drafter is called 'ngarm'; did you mean 'ngram'?" in result.stderr
    assert "bad.yaml:3: sampling.seed: got true, expected a whole number" in result.stderr
    assert "verifiers that fit: match, point_mass" in result.stderr
    both = run("check", "plain", str(bad), "--json")
    assert both.exit_code == 2
    assert [row["fits"] for row in json.loads(both.stdout)] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nobody"], "no strategy is called 'nobody'"),
        (["show", "plain", "--set", "tree.lenght=3"], "--set tree.lenght=3: tree.lenght: unknown key; did you mean 'length'?"),
        (["show", "./gone.yaml"], "./gone.yaml: no such file"),
        (["tree", "show", "eagle25"], "no tree is called 'eagle25'; did you mean 'eagle-25'?"),
        (["check", "plain", "--set", "verifier.use=chain"], "these parts do not fit together"),
    ],
)
def test_a_fault_is_a_message_on_stderr_and_exit_two(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert not result.stdout


@pytest.mark.parametrize("arguments", [["lst"], ["generate"], ["list", "nothing"], ["show", "plain", "--jsn"]])
def test_a_wrong_command_line_exits_two_too(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_version_and_help_exit_zero():
    assert run("--version").stdout.startswith("specdec ")
    assert "generate" in run("--help").stdout


def test_the_schema_accepts_every_shipped_strategy_and_refuses_what_check_refuses():
    schema = json.loads(run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in load_catalog().library.strategies().values():
        assert validator.is_valid(yaml.safe_load(path.read_text())), path
    right = {"drafter": {"use": "ngram"}}
    assert validator.is_valid(right)
    assert validator.is_valid({"target": "../models/llama", "drafter": "ngram", "tree": "chain", "verifier": "match"})
    for wrong in (
        {},
        {**right, "nmae": "x"},
        {**right, "tree": {"use": "chain", "lenght": 3}},
        {**right, "tree": {"use": "chain", "length": 1.5}},
        {**right, "verifier": {"use": "mtach"}},
        {**right, "verifier": "mtach"},
        {**right, "sampling": {"temperature": -1}},
    ):
        assert not validator.is_valid(wrong), wrong


def test_the_schema_describes_every_option_of_every_part():
    schema = json.loads(run("schema").stdout)
    for kind in ("target", "drafter", "tree", "verifier"):
        for part in schema["$defs"][kind]["oneOf"]:
            options = {k: v for k, v in part["properties"].items() if k != "use"}
            assert all(option.get("description") for option in options.values()), part["title"]


def test_tree_show_draws_every_node_and_counts_the_levels():
    result = run("tree", "show", "eagle-25")
    assert "eagle-25: 25 nodes, depth 5, by level 4 8 8 3 2" in result.stdout
    assert result.stdout.count("rank ") == 25
    facts = as_json("tree", "show", "eagle-25")
    assert facts["nodes_by_level"] == [4, 8, 8, 3, 2]
    assert len(facts["paths"]) == 25


def test_show_describes_a_part_with_options_declaration_and_source():
    shown = CliRunner().invoke(app, ["show", "drafter", "ngram"], env={"COLUMNS": "160"}).stdout
    assert shown.startswith("drafter ngram: ")
    [line] = [line for line in shown.splitlines() if line.startswith("max_ngram ")]
    assert line.split(maxsplit=4)[1:4] == ["whole", "number", "12"]
    assert "at least 1, at most 64" in line
    assert "longest suffix that is looked up, in tokens" in line
    assert "gives: candidates" in shown
    page = as_json("show", "drafter", "model")
    assert page["options"][0]["required"]
    assert page["options"][0]["type"] == "text or mapping"
    assert page["source"] == "arXiv 2211.17192, 2302.01318; as a tree 2305.09781"


def test_every_part_can_be_shown():
    for kind, parts in load_catalog().registry.parts.items():
        for name, registered in parts.items():
            page = as_json("show", kind.value, name)
            assert [option["option"] for option in page["options"]] == list(registered.cls.Options.model_fields)
            assert all(option["type"] for option in page["options"]), name
            assert run("show", kind.value, name).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "drafter", "ngarm"], "no drafter is called 'ngarm'; did you mean 'ngram'?"),
        (["show", "draftr", "ngram"], "no kind of part is called 'draftr'; did you mean 'drafter'?"),
        (["show", "tree"], "'tree' is a kind of part: `specdec show tree NAME` shows one; registered: adaptive, chain"),
        (["show", "tree", "chain", "--set", "tree.length=3"], "--set and --target change a strategy"),
    ],
)
def test_a_part_that_cannot_be_shown_is_a_message_and_exit_two(arguments, words):
    result = run(*arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.output
