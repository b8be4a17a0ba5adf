"""The pytest plug-in and the example of continuous integration, run by a pytest of their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "continuous_integration"
PLUGIN = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]["specdec"]

VERDICTS = """
def plain_p_after_rejection(p, q, drafts, uniforms):
    if next(uniforms) < p[0][drafts[0]] / q[0][drafts[0]]:
        return 1, uniforms.choose(p[1])
    return 0, uniforms.choose(p[0])


def never_drafts(ids, n, seed):
    from specdec.testing import DraftedStep, InstrumentedAnswer

    return InstrumentedAnswer([0] * n, [DraftedStep([], 0, 0)] * n)


SURE = {"use": "tabular", "vocab": 3, "rows": {"*": [1, 0, 0]}}


def test_wrong(assert_rule_lossless):
    assert_rule_lossless(plain_p_after_rejection, count=1, models=2)


def test_idle(assert_lossless):
    assert_lossless(never_drafts, target=SURE, seconds=0.1)


def test_idle_but_skipped(assert_lossless):
    assert_lossless(f"{__name__}:never_drafts", target=SURE, seconds=0.1, inconclusive="skip")
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(folder, what was printed) of a run of the example and of the tests above, with the plug-in, installed or not."""
    folder = tmp_path_factory.mktemp("suite")
    source = (EXAMPLE / "test_losslessness.py").read_text()
    assert source.count("seconds=20") == 1
    (folder / "test_losslessness.py").write_text(source.replace("seconds=20", "seconds=1, inconclusive='pass'"))
    (folder / "test_verdicts.py").write_text(VERDICTS)
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "--junit-xml=found.xml"]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    return folder, run.stdout


@pytest.mark.slow
def test_the_example_passes_and_its_workflow_runs_it(done):
    folder, printed = done
    assert "2 failed, 2 passed, 1 skipped" in printed
    assert "PROVED       rejection_sampling (test_losslessness.py::test_our_rule" in printed
    assert "Generating (test_losslessness.py::test_our_engine" in printed
    assert "| proved | `rejection_sampling` | lossless on 16 pairs" in (folder / "summary.md").read_text()
    workflow = yaml.safe_load((EXAMPLE / "losslessness.yml").read_text())
    steps = workflow["jobs"]["losslessness"]["steps"]
    assert any("pytest test_losslessness.py" in step.get("run", "") for step in steps)


@pytest.mark.slow
def test_refuted_and_inconclusive_verdicts_fail_the_test_unless_it_says_otherwise(done):
    folder, printed = done
    assert "plain_p_after_rejection: refuted: total variation" in printed
    assert "never_drafts: inconclusive: nothing was drafted" in printed
    assert "FAILED test_verdicts.py::test_wrong" in printed
    assert "FAILED test_verdicts.py::test_idle -" in printed
    assert (folder / "summary.md").read_text().count("nothing was drafted") == 2
    assert (folder / "found.xml").read_text().count('name="specdec"') == 5


def test_the_plug_in_costs_nothing_until_a_fixture_is_used():
    code = f"import sys, pytest\nbefore = set(sys.modules)\nimport {PLUGIN}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"specdec", "specdec.integrations", PLUGIN}
