"""Files in `data/written_before/` are of an earlier commit of version 0.1.0, before the modules had their places of today."""

import json
from pathlib import Path

from safetensors.torch import load_file
from typer.testing import CliRunner

from specdec.cli import app
from specdec.heads.formats.reading import read_head
from specdec.lookup.datastore import read_datastore
from specdec.lookup.successors import read_successors
from specdec.performance.acceptance_profile import read_acceptance
from specdec.performance.cost_model import read_costs
from specdec.trace.files import read_trace
from specdec.trees.tree_file import read_tree

WRITTEN = Path(__file__).parent / "data" / "written_before"


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_head_is_read_with_every_weight():
    found = read_head(WRITTEN / "run" / "head")
    weights = load_file(WRITTEN / "run" / "head" / "model.safetensors")
    assert (found.config.kind, found.config.hidden_size, found.config.inputs) == ("eagle", 16, "feature-shifted")
    assert (found.draft_ids, found.config.trained_with) == (None, None)
    wanted = sorted(float(tensor.sum()) for tensor in weights.values())
    assert sorted(float(tensor.sum()) for tensor in found.head.state_dict().values()) == wanted


def test_results_of_a_benchmark_are_summed_up_and_compared(tmp_path):
    assert "| letters |" in run("compare", WRITTEN / "bench.jsonl", WRITTEN / "bench.jsonl")
    run("report", WRITTEN / "bench.jsonl", "-o", tmp_path / "report")
    assert "| letters | 0.53x" in (tmp_path / "report" / "report.md").read_text()


def test_a_trace_is_shown(tmp_path):
    shown = json.loads(run("trace", "show", WRITTEN / "trace.jsonl", "--json"))
    assert (shown["strategy"], shown["drafters"]) == ("letters", ["ngram"])
    trace = read_trace(WRITTEN / "trace.jsonl")
    assert trace.end.text == "urjjjjjjjjjj"
    assert [token for step in trace.steps for token in step.emitted] == list(trace.end.tokens[1:])
    run("trace", "show", WRITTEN / "trace.jsonl", "-o", tmp_path / "page.html")
    assert '"letters"' in (tmp_path / "page.html").read_text()


def test_an_acceptance_profile_is_read_with_its_counts_and_paths():
    profile = read_acceptance(WRITTEN / "acceptance.yaml")
    assert (profile.reached, profile.accepted[0], profile.path_depth) == ((76, 67, 65), (67, 0), 3)
    assert len(profile.paths) == 2
    assert profile.calibration[-1].tested == 127


def test_costs_are_read():
    costs = read_costs(WRITTEN / "costs.yaml")
    assert (costs.widths[-1], costs.forward_seconds[0][-1]) == (256, 0.0170667)
    assert costs.drafter.first_seconds == 0.00142857


def test_a_tree_file_is_read_with_what_was_predicted():
    tree = read_tree(WRITTEN / "tree.yaml")
    assert (tree.name, tree.shape.num_nodes, tree.shape.depth) == ("tree", 3, 3)
    assert (tree.predicted.tau, tree.predicted.speedup) == (2.7857, 1.95)


def test_a_search_reads_profile_and_costs(tmp_path):
    run(
        "tree",
        "search",
        "-a",
        WRITTEN / "acceptance.yaml",
        "-c",
        WRITTEN / "costs.yaml",
        "-o",
        tmp_path / "tree.yaml",
        "--depth",
        3,
    )
    assert read_tree(tmp_path / "tree.yaml").shape == read_tree(WRITTEN / "tree.yaml").shape


def test_a_datastore_finds_what_followed():
    store = read_datastore(WRITTEN / "datastore.safetensors")
    assert store.num_tokens == 10
    tokens = [token for token in store.tokens.tolist() if token >= 0]
    assert store.matches(tokens[1:2], 1) == [(1, [(tokens[2], 2.0)])]


def test_successors_are_found_for_one_and_two_tokens_of_context():
    tables, vocabulary = read_successors(WRITTEN / "successors.safetensors")
    assert vocabulary is not None
    assert {order: len(table) for order, table in tables.tables.items()} == {1: 7, 2: 8}
    assert all(len(row) == 2 for table in tables.tables.values() for row in table.values())
