"""What users install: fast to import, complete in a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import specdec

ROOT = Path(__file__).parent.parent


def test_every_public_name_exists():
    for name in specdec.__all__:
        assert getattr(specdec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = specdec.nothing


def test_importing_specdec_loads_neither_torch_nor_transformers():
    code = "import specdec, sys; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_strategy_and_tree_and_no_test(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("strategies", "trees"):
        for path in (ROOT / kind).glob("*.yaml"):
            assert f"specdec/_library/{kind}/{path.name}" in names
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.slow
def test_every_shipped_strategy_is_checked_from_the_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    strategies = [path.stem for path in (ROOT / "strategies").glob("*.yaml")]
    code = "import specdec, sys; print(specdec.__file__, file=sys.stderr); from specdec.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "check", *strategies],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert str(tmp_path) in result.stderr
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(": fits") == len(strategies)
