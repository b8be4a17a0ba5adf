"""Certificates at the command line: `verify` writes them, and what needs one refuses to start without."""

import json

import pytest
from typer.testing import CliRunner

import specdec
from specdec.cli import app

SPEC = """\
target: {use: tabular, vocab: 8, random: {order: 1}}
drafter: {use: tabular, vocab: 8, random: {seed: 7, order: 1}}
tree: {use: chain, length: 2, draw: sampled}
verifier: {use: lenience, lenience: 0.75}
sampling: {temperature: 1.0}
allow_lossy: true
max_tv: 0.5
"""
EAGLE = """\
extends: eagle3-block
verifier: {use: lenience}
sampling: {temperature: 1.0, top_k: 20}
allow_lossy: true
"""
FAST = ("--budget", "0.2", "--models", "1", "--vocab", "3", "--depth", "1")
BENCH = (
    "bench",
    "-s",
    "lossy.yaml",
    "--prompts",
    "q.jsonl",
    "--max-new-tokens",
    "4",
    "--temperature",
    "1",
    "--output",
    "b.jsonl",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lossy.yaml").write_text(SPEC)
    (tmp_path / "q.jsonl").write_text(json.dumps({"question_id": 0, "category": "a", "turns": ["abc"]}) + "\n")
    return tmp_path


def command(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "lossy.yaml", "abc"),
        BENCH,
        ("compare-rules", "lossy.yaml"),
        ("generate", "lossy.yaml", "abc", "--trace", "t"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_spec_with_a_limit_does_not_start_without_a_certificate(folder, arguments):
    result = command(*arguments)
    assert result.exit_code == 2
    assert "max_tv 0.5 needs a certificate" in result.stderr
    assert "`specdec verify lossy.yaml`" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_verify_measures_a_lossy_rule_and_writes_the_certificate_under_which_it_runs(folder):
    result = command("verify", "lossy.yaml", *FAST, "-o", "c.json", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["known_cases"]["A, one draw"] == pytest.approx(1 / 15)
    assert 0 < facts["price"]["tv"] < facts["price"]["tv_upper_bound"] < 0.5
    assert facts["price"]["tau"] > 1
    certificate = specdec.Certificate.read("c.json")
    assert certificate.tv_at_most == facts["price"]["tv_upper_bound"]
    answer = command("generate", "lossy.yaml", "abc", "--max-new-tokens", "4", "--json")
    assert answer.exit_code == 0, answer.stderr
    carried = json.loads(answer.stdout)["certificate"]
    assert carried["sha256"] == certificate.sha256
    assert not carried["lossless"]
    assert command(*BENCH).exit_code == 0
    header = json.loads((folder / "b.jsonl").read_text().splitlines()[0])["header"]
    [described] = header["contenders"]["lossy"]["certificates"]
    assert (described["sha256"], described["temperature"]) == (certificate.sha256, 1.0)
    assert "certificates" not in header["contenders"]["plain"]
    other = command(*BENCH[:-1], "b2.jsonl", "--temperature", "0.5")
    assert other.exit_code == 2
    assert "needs a certificate" in other.stderr


@pytest.mark.slow
def test_verify_exits_one_above_the_limit_and_the_decoder_stays_refused(folder):
    result = command("verify", "lossy.yaml", *FAST, "--set", "max_tv=0.001")
    assert result.exit_code == 1, result.stderr
    assert "above max_tv 0.001" in result.stderr
    refused = command("generate", "lossy.yaml", "abc", "--set", "max_tv=0.001")
    assert refused.exit_code == 2
    assert "max_tv is 0.001, and by certificate" in refused.stderr


def test_without_a_limit_a_lossy_answer_is_printed_with_what_the_rule_costs_on_known_cases(folder):
    result = command("generate", "lossy.yaml", "abc", "--set", "max_tv=null", "--max-new-tokens", "4")
    assert result.exit_code == 0, result.stderr
    assert "a token's total variation is up to 0.111 on 8 known cases: G, one draw" in result.stdout


def test_a_certificate_file_that_is_of_something_else_is_refused(folder):
    (folder / "c.json").write_text("{}")
    result = command("generate", "lossy.yaml", "abc", "--certificate", "c.json")
    assert result.exit_code == 2
    assert "'c.json' is no certificate" in result.stderr
    function = command("verify", "--callable", "my:answer", "--certificate", "d.json")
    assert function.exit_code == 2
    assert "--certificate: is for strategies" in function.stderr


@pytest.mark.slow
def test_a_lossless_strategy_passes_any_limit_by_its_exact_proof(folder):
    (folder / "exact.yaml").write_text("extends: lossy.yaml\nverifier: {use: chain}\nallow_lossy: false\n")
    result = command("verify", "exact.yaml", "--budget", "0.5", "-o", "c.json")
    assert result.exit_code == 0, result.stderr
    specdec.Certificate.read("c.json").require_lossless()
    answer = command("generate", "exact.yaml", "abc", "--temperature", "0.5", "--max-new-tokens", "4", "--json")
    assert json.loads(answer.stdout)["certificate"]["lossless"]


@pytest.mark.slow
def test_levels_that_say_nothing_of_the_limit_store_nothing_and_leave_an_earlier_certificate(folder):
    (folder / "exact.yaml").write_text("extends: lossy.yaml\nverifier: {use: chain}\nallow_lossy: false\n")
    bitwise = ("verify", "exact.yaml", "--level", "bitwise", "--budget", "0.2")
    result = command(*bitwise)
    assert result.exit_code == 3
    assert "these levels say nothing of max_tv" in result.stderr
    assert not (folder / "cache").exists()
    assert command("verify", "exact.yaml", "--budget", "0.5").exit_code == 0
    [stored] = (folder / "cache" / "certificates").glob("exact-*.json")
    before = stored.read_text()
    assert "say nothing" not in command(*bitwise).stderr
    assert stored.read_text() == before
    assert command("generate", "exact.yaml", "abc", "--max-new-tokens", "2").exit_code == 0


@pytest.mark.slow
def test_a_lenient_chain_of_the_embedded_model_is_priced_and_carries_its_certificate(tmp_path):
    (tmp_path / "eagle.yaml").write_text(EAGLE)
    spec, file = str(tmp_path / "eagle.yaml"), str(tmp_path / "c.json")
    result = command("verify", spec, "--budget", "1", "--models", "1", "--depth", "1", "-o", file)
    assert result.exit_code == 0, result.stderr
    certificate = specdec.Certificate.read(file)
    assert set(certificate.files) == {"target", "drafter.head"}
    assert certificate.numerics.dtype == "bfloat16"
    assert certificate.numerics.chat_template
    assert certificate.measured.prompts == 16
    assert 0 < certificate.measured.tv < certificate.tv_at_most < 1
    limit = f"max_tv={min(0.99, 1.01 * certificate.tv_at_most)}"
    answer = command("generate", spec, "Hello", "--max-new-tokens", "4", "--certificate", file, "--set", limit, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["certificate"]["sha256"] == certificate.sha256
    refused = command("generate", spec, "Hello", "--certificate", file, "--set", "max_tv=0.001")
    assert refused.exit_code == 2
    assert "max_tv is 0.001" in refused.stderr
