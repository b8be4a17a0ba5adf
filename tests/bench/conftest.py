"""Small benchmarks: tabular targets, questions of letters, and results by hand."""

import json

import pytest

from specdec.bench.contenders import Choice, Lineup
from specdec.bench.measurements import Answer, Cell, Counts, Header, Measurement, Results
from specdec.bench.prompts import Selection, read_questions
from specdec.bench.results import ResultsFile, read_results
from specdec.bench.run import Bench
from specdec.bench.settings import BenchSettings
from specdec.config.catalog import load_catalog

TARGET = "{use: tabular, vocab: 26, random: {order: 1, sharpness: 4.0}}"
SPECS = {
    "tree": f"target: {TARGET}\ndrafter: {{use: ngram}}\ntree: {{use: dynamic, width: 2, depth: 3, nodes: 6}}\n",
    "chain": f"target: {TARGET}\ndrafter: {{use: tabular, mode: mixed}}\ntree: {{use: chain, length: 4}}\n",
    "other": "target: {use: tabular, vocab: 25, random: {}}\ndrafter: {use: ngram}\n",
    "lossless": (
        f"target: {TARGET}\ndrafter: {{use: tabular, mode: mixed}}\ntree: {{use: sampled, widths: [2, 1]}}\n"
        "verifier: {use: multi_round}\n"
    ),
}
QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["abc", "de"]},
    {"question_id": 2, "category": "math", "turns": ["fgh"]},
    {"question_id": 3, "category": "math", "turns": ["xyz", "ab"]},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the specs and the questions, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name, text in SPECS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return tmp_path


@pytest.fixture
def measure(folder):
    """Run a benchmark of strategies by name, and read its file."""

    def run(*names, output="results.jsonl", progress=lambda *_: None, **settings) -> Results:
        plan = BenchSettings(**{"max_new_tokens": 12, **settings})
        questions, _ = read_questions([folder / "questions.jsonl"], Selection())
        lineup = Lineup(Choice([f"{name}.yaml" for name in names]), load_catalog(), plan.dtypes)
        header = Header({"settings": plan.described()}, lineup.describe(), {"started": "2026-01-01T00:00:00+00:00"})
        with ResultsFile(folder / output, header) as file:
            Bench(plan, questions, lineup, file, progress).run()
        return read_results(folder / output)

    return run


CELL = Cell(None, 0.0, 1)


@pytest.fixture
def results_of():
    """Results by hand: {contender: [(seconds, tokens) or a Measurement, by group]}."""

    def make(times, *, cell=CELL, categories=None, counts=None, specs=None, plan=None, provenance=None) -> Results:
        measurements = []
        for name, rows in times.items():
            for group, (seconds, tokens) in enumerate(rows):
                category = "all" if categories is None else categories[group]
                ids = tuple(range(tokens)) if isinstance(tokens, int) else tuple(tokens)
                answer = Answer(f"q/{group}", 0, category, 4, ids, "x", (counts or {}).get(name))
                measurements.append(Measurement(cell, name, group, 0, seconds, 0.01, (answer,)))
        described = {name: (specs or {}).get(name, {"shape": "chain"}) for name in times}
        return Results(Header(plan or {}, described, provenance or {}), tuple(measurements))

    return make


@pytest.fixture
def counts():
    return Counts
