"""`bench`, `report` and `compare` as a user runs them."""

import csv
import json
from io import StringIO

import pytest
from typer.testing import CliRunner

from specdec.cli import app

SPEC = """\
target: {use: tabular, vocab: 26, random: {order: 1, sharpness: 4.0}}
drafter: {use: ngram}
tree: {use: dynamic, width: 2, depth: 3, nodes: 6}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.yaml").write_text(SPEC)
    rows = [{"question_id": n, "category": "ab"[n % 2], "turns": ["abc", "xy"][: 1 + n % 2]} for n in range(4)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def bench(*arguments):
    return run("bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--max-new-tokens", "8", *arguments)


def test_a_benchmark_prints_its_table_and_says_where_the_results_are(folder):
    result = bench("-o", "r.jsonl")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "float64, T = 0, batch 1" in lines
    assert any(line.startswith("| plain | 1 |") for line in lines)
    assert any(line.startswith("| letters |") and line.endswith("| 0 of 6 |") for line in lines)
    assert lines[-1].startswith("results in r.jsonl")


def test_going_on_with_a_file_says_what_is_there(folder):
    bench("-o", "r.jsonl")
    result = bench("-o", "r.jsonl")
    assert result.exit_code == 0
    assert "resuming r.jsonl: 12 measurements are there" in result.stderr


def test_json_has_every_figure(folder):
    result = bench("--json", "--temperature", "0", "--temperature", "1", "--top-p", "0.9")
    found = json.loads(result.stdout)
    assert [(s["contender"], s["cell"]["temperature"]) for s in found] == [
        ("plain", 0.0),
        ("letters", 0.0),
        ("plain", 1.0),
        ("letters", 1.0),
    ]
    assert found[1]["drafts"]["tau"] >= 1
    assert found[1]["num_tokens"] == 48


def test_a_report_has_markdown_csv_and_pictures(folder):
    bench("-o", "r.jsonl", "--batch-size", "2")
    result = run("report", "r.jsonl", "--spec-bench")
    assert result.exit_code == 0, result.output
    made = {path.name for path in (folder / "r-report").iterdir()}
    pictures = {f"{kind}-float64-T0-batch2.png" for kind in ("speedup", "acceptance", "phases")}
    answers = {f"answers-{name}-float64-T0-batch2.jsonl" for name in ("plain", "letters")}
    assert made == {"report.md", "summary.csv"} | pictures | answers
    text = (folder / "r-report" / "report.md").read_text()
    for heading in ("## float64, T = 0, batch 2", "Where the time goes", "Acceptance by child rank", "- cpu:"):
        assert heading in text
    assert all(f"({picture})" in text for picture in pictures)
    rows = list(csv.DictReader(StringIO((folder / "r-report" / "summary.csv").read_text())))
    assert {(row["category"], row["contender"]) for row in rows} == {
        (category, name) for category in ("all", "mixed", "b") for name in ("plain", "letters")
    }
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_a_report_of_half_a_file_is_made_too(folder):
    bench("-o", "r.jsonl")
    lines = (folder / "r.jsonl").read_text().splitlines(keepends=True)
    for count in (3, 5):
        (folder / "r.jsonl").write_text("".join(lines[:count]))
        result = run("report", "r.jsonl")
        assert result.exit_code == 0, result.output
    (folder / "r.jsonl").write_text(lines[0])
    assert "nothing has been measured yet" in run("report", "r.jsonl").stderr


def test_two_files_are_compared(folder):
    bench("-o", "a.jsonl")
    bench("-o", "b.jsonl", "--set", "tree.nodes=4")
    result = run("compare", "a.jsonl", "b.jsonl")
    assert result.exit_code == 0, result.output
    assert "letters.spec.tree.nodes: 6 there, 4 here" in result.stdout
    assert {pair["contender"] for pair in json.loads(run("compare", "a.jsonl", "b.jsonl", "--json").stdout)["pairs"]} == {
        "plain",
        "letters",
    }


def test_answers_of_spec_bench_are_compared_too(folder):
    bench("-o", "r.jsonl")
    run("report", "r.jsonl", "--spec-bench", "-o", "out")
    files = [f"out/answers-{name}-float64-T0-batch1.jsonl" for name in ("plain", "letters")]
    result = run("compare", *files)
    assert result.exit_code == 0, result.output
    assert "| overall | 4 |" in result.stdout
    assert "one has answers of Spec-Bench" in run("compare", files[0], "r.jsonl").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "--prompts", "q.jsonl"], "name at least one strategy"),
        (["bench", "-s", "letters.yaml", "--prompts", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["bench", "-s", "leters", "--prompts", "q.jsonl"], "leters"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--peer", "x"], "no peer is called 'x'"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--peer", "transformers", "--no-peers"], "contradict"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--dtype", "int4"], "--dtype: got 'int4'"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--dtype", "float32"], "target.dtype"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--chat"], "no chat template"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--top-p", "0"], "--top-p: got 0.0"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--temperature", "inf"], "--temperature: got inf"),
        (
            ["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "--temperature", "1e-320"],
            "9.99989e-321, expected 0, which is",
        ),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "-o", "letters.yaml"], "holds no results"),
        (["bench", "-s", "letters.yaml", "--prompts", "q.jsonl", "-o", "."], ".: is a folder; expected the name of a file"),
        (["report", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["report", "q.jsonl"], "no results of `specdec bench`"),
        (["compare", "q.jsonl", "q.jsonl"], "no results of `specdec bench`"),
    ],
)
def test_what_cannot_be_done_is_a_message_and_exit_two(folder, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_the_embedded_model_beside_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"prompt": "Count to ten."}\n{"prompt": "Name a fruit."}\n')
    options = ["--max-new-tokens", "16", "--dtype", "float32", "--warmup", "0", "--json"]
    result = run("bench", "-s", "ngram-chain", "--prompts", "q.jsonl", *options)
    assert result.exit_code == 0, result.output
    found = {summary["contender"]: summary for summary in json.loads(result.stdout)}
    assert set(found) == {"plain", "ngram-chain", "transformers", "transformers-lookup"}
    assert all(summary["num_different"] == 0 for summary in found.values())
    assert all(summary["speedup"]["value"] > 0 and summary["versus"]["transformers"] for summary in found.values())


def test_a_setting_that_is_named_twice_is_measured_once(folder):
    result = bench("-o", "r.jsonl", "--temperature", "0", "--temperature", "0", "--batch-size", "1", "--batch-size", "1")
    assert any(line.startswith("| letters |") and line.endswith("| 0 of 6 |") for line in result.stdout.splitlines())


@pytest.mark.parametrize("setting", ["sampling.temperature=1", "sampling.seed=7", "sampling={top_k: 3}"])
def test_a_value_that_the_benchmark_would_replace_is_refused(folder, setting):
    result = bench("-o", "r.jsonl", "--set", setting)
    assert result.exit_code == 2
    assert f"--set {setting}" in result.stderr
    assert "--temperature" in result.stderr


def test_a_benchmark_that_was_stopped_is_reported_and_compared_as_unfinished(folder):
    bench("-o", "r.jsonl")
    assert "Unfinished" not in run("report", "r.jsonl").stdout
    lines = (folder / "r.jsonl").read_text().splitlines(keepends=True)
    (folder / "part.jsonl").write_text("".join(lines[:4]))
    assert "only 1 of 4 questions" in run("report", "part.jsonl").stdout
    assert "the second file has only 1 of 4 questions" in run("compare", "r.jsonl", "part.jsonl").stdout


def test_a_question_that_the_model_cannot_read_is_named(folder):
    (folder / "q.jsonl").write_text('{"question_id": 7, "prompt": "A B"}\n')
    assert "question q/7: " in bench("-o", "r.jsonl").stderr
