import subprocess
import sys

import pytest

from specdec.errors import SpecError
from specdec.files.locks import exclusive

HOLD = """
import sys, pathlib
from specdec.files.locks import exclusive
with exclusive(pathlib.Path(sys.argv[1]), folder=sys.argv[2] == "folder"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_output_that_another_process_writes_is_refused_until_that_ends_even_killed(tmp_path, kind):
    path = tmp_path / "x"
    command = [sys.executable, "-c", HOLD, str(path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SpecError, match="x: is being written by"), exclusive(path, folder=kind == "folder"):
            pass
        other.kill()
    with exclusive(path, folder=kind == "folder"):
        pass


def test_one_process_holds_an_output_once_and_others_at_will(tmp_path):
    with (
        exclusive(tmp_path / "x"),
        exclusive(tmp_path / "y"),
        pytest.raises(SpecError, match="x: is being written"),
        exclusive(tmp_path / "x"),
    ):
        pass
    with exclusive(tmp_path / "x"):
        pass


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    for name in (".x.jsonl.0123.partial", ".x.0123.partial", ".x.jsonl.y.0123.partial", "x.jsonl", "x.jsonl.partial"):
        (tmp_path / name).write_text("")
    with exclusive(tmp_path / "x.jsonl"):
        pass
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".x.0123.partial", ".x.jsonl.y.0123.partial", "x.jsonl", "x.jsonl.partial", ".x.jsonl.lock"}


def test_a_place_where_nothing_can_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"), exclusive(tmp_path / "file" / "x"):
        pass
