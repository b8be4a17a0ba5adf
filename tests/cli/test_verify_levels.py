"""`verify --level`, `--report` and `--callable`."""

import json

import pytest
from typer.testing import CliRunner

from specdec.cli import app

TABLE = "target={use: tabular, vocab: 12, random: {}}"
DRAFTS = "drafter={use: tabular, vocab: 12, random: {seed: 2}}"


def run(*words):
    return CliRunner().invoke(app, ["verify", *words])


def test_a_strategy_or_a_function_is_needed_and_not_both():
    for words in ([], ["plain", "--callable", "math:sqrt"]):
        result = run(*words)
        assert result.exit_code == 2
        assert "one of them" in result.stderr


def test_a_level_without_what_it_needs_is_inconclusive_with_exit_three():
    result = run("ngram-chain", "--set", TABLE, "--level", "bitwise", "--budget", "1")
    assert result.exit_code == 3
    assert "target 'tabular' has no bitwise mode" in result.stdout


def test_the_runtime_level_of_a_table_is_proved_and_reported(tmp_path):
    result = run("ngram-chain", "--set", TABLE, "--level", "runtime", "--budget", "0.5", "--report", str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    assert "greedy up to ties (L2)" in result.stdout
    data = json.loads((tmp_path / "new" / "report.json").read_text())
    assert data["levels"]["runtime"]["outcome"] == "proved"
    assert data["spec"]["drafter"]["use"] == "ngram"


def test_a_report_that_cannot_be_written_stops_the_run_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("plain", "--report", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert "cannot be written to" in result.stderr


@pytest.mark.slow
def test_all_levels_have_a_verdict_each(tmp_path):
    words = ["--set", TABLE, "--set", DRAFTS, "--level", "all", "--budget", "5", "--models", "2"]
    result = run("self-sampled-chain", *words, "--json", "--report", str(tmp_path))
    assert result.exit_code == 3, result.output
    data = json.loads(result.stdout)
    assert list(data["levels"]) == ["exact", "bitwise", "runtime", "sampled"]
    assert data["levels"]["exact"]["outcome"] == data["levels"]["runtime"]["outcome"] == "proved"
    assert data["levels"]["bitwise"]["outcome"] == "inconclusive"
    assert data["levels"]["sampled"]["outcome"] in ("proved", "inconclusive")
    assert (tmp_path / "report.png").exists()


ALWAYS_ZERO = "def answer(ids, n, seed):\n    return [0] * n\n"


def test_a_function_that_is_not_the_target_is_refuted(tmp_path, monkeypatch):
    (tmp_path / "zero_decoder.py").write_text(ALWAYS_ZERO)
    monkeypatch.chdir(tmp_path)
    words = ["--callable", "zero_decoder:answer", "--set", TABLE, "--budget", "3"]
    hot = run(*words, "--set", "sampling.temperature=1.0")
    assert hot.exit_code == 1, hot.output
    assert "refuted" in hot.stdout
    cold = run(*words)
    assert cold.exit_code == 1, cold.output
    assert "near-tie" in cold.stdout


@pytest.mark.parametrize("level", ["bitwise", "sampled"])
def test_a_level_that_a_function_cannot_be_put_to_is_refused(tmp_path, monkeypatch, level):
    monkeypatch.chdir(tmp_path)
    result = run("--callable", "math:sqrt", "--set", TABLE, "--level", level)
    assert result.exit_code == 2
    assert "runtime would work" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plain", "--level", "runtime", "--vocab", "4"], "--vocab: is for the stand-in models of level exact"),
        (["--callable", "math:sqrt", "--models", "4"], "--callable has none"),
        (["plain", "--budget", "inf"], "expected a finite number"),
    ],
)
def test_sizes_that_the_level_would_ignore_or_never_reach_are_refused(words, said):
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.stderr
