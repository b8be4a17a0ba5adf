"""`tree search`, `tree show`, `tree convert`, `simulate`, `roofline`, `profile`, `acceptance`: as a user calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.performance.acceptance_profile import AcceptanceProfile, CalibrationBin, read_acceptance, write_acceptance
from specdec.performance.cost_model import CostModel, DrafterCost, read_costs, write_costs
from specdec.tree_search.expected_tokens import expected_tokens
from specdec.tree_search.optimizer import predicted
from specdec.trees.tree_file import read_tree

RATES = ((0.6, 0.2, 0.1), (0.5, 0.2, 0.1))


def run(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def files(tmp_path, monkeypatch):
    """An acceptance profile a.yaml and costs c.yaml, in the working folder."""
    monkeypatch.chdir(tmp_path)
    bins = (CalibrationBin(probability=0.5, tested=10, accepted=4),)
    write_acceptance(Path("a.yaml"), AcceptanceProfile(source="drafts", given=RATES, calibration=bins))
    write_costs(
        Path("c.yaml"),
        CostModel(
            source="machine",
            widths=(1, 17),
            contexts=(64, 256),
            forward_seconds=((0.01, 0.02), (0.012, 0.024)),
            spread=((0.01, 0.02), (0.03, 0.04)),
            drafter=DrafterCost(name="d", first_seconds=0.0005, widths=(1, 8), seconds=(0.0005, 0.001)),
        ),
    )
    return tmp_path


def test_a_searched_tree_is_written_with_its_prediction_and_a_strategy_can_use_it(files):
    result = run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "-o", "mine.yaml")
    assert "written to mine.yaml" in result.stdout
    assert "plain decoding" in result.stdout
    tree = read_tree(Path("mine.yaml"))
    costs, children = read_costs(Path("c.yaml")), read_acceptance(Path("a.yaml")).rates().children
    tokens = expected_tokens(tree.shape, children)
    assert tree.predicted.tau == pytest.approx(tokens, abs=1e-4)
    assert tree.predicted.speedup == pytest.approx(predicted(tree.shape, tokens, costs, context=160).speedup, abs=1e-4)
    assert "predicted: tau" in run("tree", "show", "mine.yaml").stdout
    assert json.loads(run("tree", "show", "mine.yaml", "--json").stdout)["predicted"]["tau"] == tree.predicted.tau
    assert run("show", "self-fixed", "--set", "tree.file=./mine.yaml").exit_code == 0


@pytest.mark.parametrize("method", ["greedy", "brute"])
def test_the_other_methods_find_as_good_a_tree(files, method):
    reports = [
        json.loads(
            run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "--nodes", 5, "--depth", 3, "--method", name, "--json").stdout
        )
        for name in ("dynamic", method)
    ]
    assert reports[0]["best"]["speedup"] == pytest.approx(reports[1]["best"]["speedup"])
    assert reports[0]["written"] is None


def test_no_tree_is_written_where_plain_decoding_wins(files):
    run("roofline", "-o", "slow.yaml", "--parameters", 1e9, "--bandwidth", 1e12, "--flops", 1e12, "--draft-parameters", 9e9)
    result = run("tree", "search", "-a", "a.yaml", "-c", "slow.yaml", "-o", "mine.yaml")
    assert "nothing beats plain decoding" in result.stdout
    assert not Path("mine.yaml").exists()


def test_costs_without_a_drafter_count_drafting_as_free_and_say_so(files):
    run("roofline", "-o", "free.yaml", "--parameters", 1e9, "--bandwidth", 1e12, "--flops", 1e14)
    result = run("tree", "search", "-a", "a.yaml", "-c", "free.yaml")
    assert "drafting counts as free" in result.stderr


def test_simulate_gives_the_same_by_formula_and_by_play(files):
    report = json.loads(run("simulate", "-a", "a.yaml", "-c", "c.yaml", "--tree", "chain-3", "--json").stdout)
    assert report["closed_form"]["tau"] == pytest.approx(1 + 0.6 + 0.3 + 0.15)
    assert report["monte_carlo"]["tau"] == pytest.approx(report["closed_form"]["tau"], abs=0.06)
    assert report["replayed"] is None
    strategy = json.loads(
        run("simulate", "self-greedy-chain", "-a", "a.yaml", "-c", "c.yaml", "--set", "tree.length=3", "--json").stdout
    )
    assert strategy["closed_form"] == report["closed_form"]
    assert "Monte Carlo" in run("simulate", "-a", "a.yaml", "-c", "c.yaml", "--tree", "eagle-25").stdout
    assert "1.000" in run("simulate", "plain", "-a", "a.yaml", "-c", "c.yaml").stdout


def test_a_tree_goes_to_another_format_and_back(files):
    run("tree", "convert", "eagle-16", "e.pt")
    run("tree", "convert", "e.pt", "e.json", "--to", "umbrella")
    run("tree", "convert", "e.json", "list.json")
    Path("choices.py").write_text(f"other = 1\nmine = {Path('list.json').read_text()}")
    run("tree", "convert", "choices.py", "back.yaml", "--variable", "mine", "--name", "again")
    original = read_tree(Path(__file__).parents[2] / "trees" / "eagle-16.yaml")
    back = read_tree(Path("back.yaml"))
    assert set(back.shape.paths) == set(original.shape.paths)
    assert back.name == "again"


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_show_draws_a_picture(files, ending, magic):
    run("tree", "show", "eagle-16", "-o", f"t.{ending}", "--acceptance", "a.yaml")
    assert Path(f"t.{ending}").read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tree", "search", "-a", "c.yaml", "-c", "c.yaml"], "kind: got 'cost', expected 'acceptance'"),
        (["tree", "search", "-a", "none.yaml", "-c", "c.yaml"], "none.yaml: cannot be read"),
        (["tree", "search", "-a", "a.yaml", "-c", "c.yaml", "-o", "a.yaml/x.yaml"], "cannot be written"),
        (["tree", "search", "-a", "a.yaml", "-c", "c.yaml", "--method", "brute"], "too many"),
        (["tree", "show", "eagle-16", "-o", "t.bmp"], "a picture ends in .svg"),
        (["tree", "show", "eagle-16", "--acceptance", "a.yaml"], "--output names its file"),
        (["tree", "convert", "eagle16", "x.pt"], "did you mean 'eagle-16'"),
        (["tree", "convert", "a.yaml", "x.pt"], "a.yaml:1: kind: unknown key"),
        (["tree", "convert", "eagle-16", "a.yaml/x.pt"], "cannot be written"),
        (["simulate", "-a", "a.yaml", "-c", "c.yaml"], "either a strategy or --tree"),
        (["simulate", "ngram-tree", "-a", "a.yaml", "-c", "c.yaml", "--set", "tree={use: dynamic}"], "has no shape of its own"),
        (["roofline", "-o", ".", "--parameters", 1e9, "--bandwidth", 1e9, "--flops", 1e9], "is a folder"),
        (["roofline", "-o", "x/y.yaml", "--parameters", 1e9, "--bandwidth", 1e9, "--flops", 1e9], "there is no folder x"),
        (["acceptance", "plain", "--prompts", "none.jsonl", "-o", "x.yaml"], "none.jsonl: cannot be read"),
        (["acceptance", "plain", "--prompts", "q.jsonl", "-o", "x.yaml"], "drafts nothing"),
        (["acceptance", "self-wor", "--prompts", "q.jsonl", "-o", "x.yaml"], "(--own-steps)"),
        (["profile", "no-such", "-o", "x.yaml"], "no folder 'no-such'"),
        (["profile", "builtin", "--target", "x", "-o", "x.yaml"], "names a target already"),
        (["profile", "plain", "-o", "x.yaml", "--plot", "x.txt"], "a picture ends in"),
    ],
)
def test_a_fault_is_told_in_a_line_and_exits_with_2(files, words, message):
    Path("q.jsonl").write_text('{"prompt": "Hello"}\n')
    assert message in run(*words, code=2).output.replace("\n", " ")


@pytest.mark.slow
def test_profiles_of_the_embedded_model_feed_a_search(files):
    Path("q.jsonl").write_text('{"prompt": "Count from one to ten, three times over."}\n')
    settings = ["--set", "drafter.candidates=3"]
    words = ["-o", "cost.yaml", "--max-width", 2, "--context", 16, "--rounds", 1, "--plot", "c.svg"]
    assert "ms more a level for each further sequence of a batch" in run("profile", "ngram-chain", *words).stdout
    words = ["--prompts", "q.jsonl", "-o", "acc.yaml", "--max-new-tokens", 20, "--depth", 4, "--plot", "a.png"]
    run("acceptance", "ngram-chain", *words, *settings)
    profile = read_acceptance(Path("acc.yaml"))
    assert profile.provenance["answers"] == 1
    assert len(profile.trails[0]) <= 19
    assert read_costs(Path("cost.yaml")).widths == (1, 2)
    assert "plain decoding" in run("tree", "search", "-a", "acc.yaml", "-c", "cost.yaml").stdout
    assert all(Path(name).stat().st_size > 1000 for name in ("c.svg", "a.png"))


@pytest.mark.parametrize("option", ["--bandwidth", "--forward-overhead", "--draft-parameters", "--kv-bytes-per-token"])
def test_the_roofline_of_an_endless_number_is_refused(files, option):
    words = ["roofline", "-o", "r.yaml", "--parameters", 1e9, "--bandwidth", 1e12, "--flops", 1e12, option, "inf"]
    assert "finite" in run(*words, code=2).stderr
    assert not Path("r.yaml").exists()


def test_a_picture_does_not_replace_the_profile_that_it_shows(files):
    result = run(
        "roofline", "-o", "r.png", "--plot", "./r.png", "--parameters", 1e9, "--bandwidth", 1e12, "--flops", 1e12, code=2
    )
    assert "give the picture another name" in result.stderr


def test_options_that_a_tree_cannot_follow_are_refused(files):
    words = ["simulate", "-a", "a.yaml", "-c", "c.yaml", "--tree", "chain-3", "--set", "tree.length=1"]
    assert "--set tree.length=1" in run(*words, code=2).stderr
    for option in ("--variable=x", "--from=vllm"):
        assert "shipped tree" in run("tree", "convert", "chain-3", "o.yaml", option, code=2).stderr


def test_a_file_without_a_list_of_paths_says_so(files):
    Path("nothing.json").write_text("")
    assert "no list; names found: none" in run("tree", "convert", "nothing.json", "o.yaml", code=2).stderr


def test_acceptance_is_measured_on_a_target_without_a_chat_template(files):
    Path("q.jsonl").write_text('{"prompt": "abcabc"}\n')
    table = "target={use: tabular, vocab: 12, random: {}}"
    run("acceptance", "ngram-tree", "--set", table, "--prompts", "q.jsonl", "-o", "m.yaml", "--max-new-tokens", 16)
    assert sum(read_acceptance(Path("m.yaml")).reached) > 0


def test_what_is_read_is_not_replaced_by_what_is_written(files):
    before = Path("a.yaml").read_bytes()
    run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "-o", "./a.yaml", code=2)
    assert Path("a.yaml").read_bytes() == before
    Path("q.jsonl").write_text('{"prompt": "abc"}\n')
    run("acceptance", "ngram-tree", "--prompts", "q.jsonl", "-o", "q.jsonl", code=2)
    run("datastore", "build", "q.jsonl", "-o", "q.jsonl", code=2)
    run("datastore", "successors", "q.jsonl", "-o", "q.jsonl", code=2)
    assert Path("q.jsonl").read_text() == '{"prompt": "abc"}\n'


def test_a_tree_without_a_node_is_not_written(files):
    Path("nothing.json").write_text("[]")
    assert "no node" in run("tree", "convert", "nothing.json", "o.yaml", code=2).stderr
    assert not Path("o.yaml").exists()


def test_a_tree_deeper_than_the_profile_is_simulated_with_a_warning(files):
    write_acceptance(Path("n.yaml"), AcceptanceProfile(source="counts", reached=(10, 5), accepted=((5,), (3,))))
    words = ["simulate", "-a", "n.yaml", "-c", "c.yaml", "--answers", 2, "--tree"]
    assert "2 levels and the tree has 3" in run(*words, "chain-3").stderr
    Path("short.yaml").write_text("name: short\nsource: mine\nchain: 2\n")
    assert "warning" not in run(*words, "./short.yaml").stderr


def test_a_search_among_delayed_trees_or_chains_prints_the_options_of_the_fastest(files):
    printed = run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "--builder", "delayed", "-o", "d.yaml").stdout
    assert "tree: {use: delayed, stem: " in printed
    assert read_tree(Path("d.yaml")).shape.max_children[0] == 1
    found = json.loads(run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "--builder", "chains", "--json").stdout)
    assert found["best"]["options"]["use"] == "chains"
    refused = run("tree", "search", "-a", "a.yaml", "-c", "c.yaml", "--builder", "chains", "-o", "x.yaml", code=2)
    assert "'chains' takes no tree file" in refused.output
