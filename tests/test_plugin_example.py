"""A third-party package, built and installed as users would: it shows up everywhere, runs, and is proved."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "plugin_example"
TABLE = "target={use: tabular, vocab: 3, random: {order: 1, sharpness: 4}}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "example"
    source.mkdir()
    subprocess.run(["cp", "-r", *map(str, EXAMPLE.iterdir()), str(source)], check=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return folder


def specdec(installed: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    paths = [str(installed), str(EXAMPLE.parent.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-m", "specdec", *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_it_is_listed_with_its_package(installed):
    tables = json.loads(specdec(installed, "list", "--json").stdout)
    assert {"name": "follower", "from": "specdec-plugin-example"}.items() <= tables["drafters"][-1].items()
    assert "follower" in {row["name"] for row in tables["strategies"]}


@pytest.mark.slow
def test_its_options_are_in_the_schema_and_are_checked(installed):
    assert "tokens proposed after each token" in specdec(installed, "schema").stdout
    assert specdec(installed, "check", "follower").returncode == 0
    wrong = specdec(installed, "check", "follower", "--set", "drafter.candidtaes=3")
    assert wrong.returncode == 2
    assert "did you mean 'candidates'" in wrong.stderr


@pytest.mark.slow
def test_it_drafts_and_the_ids_are_plain_decodings(installed):
    result = specdec(installed, "generate", "follower", "abcabc", "--set", TABLE, "--compare", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["tau"] > 1.2
    assert facts["compare"]["same_ids"]


@pytest.mark.slow
def test_it_is_proved_like_any_other(installed):
    result = specdec(installed, "verify", "follower", "--models", "1")
    assert result.returncode == 0, result.stderr
    assert "L3 distribution-exact for every place of the tree" in result.stdout
    assert "'follower' itself" in result.stdout


@pytest.mark.slow
def test_its_own_tests_pass_and_use_the_kit(installed, tmp_path):
    """Run as its author would: pytest in a folder of its own, the package installed."""
    tests = tmp_path / "tests"
    shutil.copytree(EXAMPLE / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    paths = os.pathsep.join([str(installed), str(EXAMPLE.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tests), str(tests)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout


@pytest.mark.slow
def test_it_can_be_turned_off(installed):
    result = specdec(installed, "check", "ngram-tree", "--set", "drafter.use=follower", SPECDEC_DISABLE_PLUGINS="1")
    assert result.returncode == 2
    assert "no drafter is called 'follower'" in result.stderr
