"""Output that cannot be written, and interrupts: one line and an exit code, whatever the command."""

import io
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.cli.output import exit_code
from specdec.cli.terminal import print_json

COMMAND = [sys.executable, "-m", "specdec"]


def test_a_narrow_terminal_shows_whole_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    shown = CliRunner().invoke(app, ["list", "verifiers"]).stdout.splitlines()
    assert "multi_round" in shown
    assert max(map(len, shown)) <= 30
    text = " ".join(line.strip() for line in shown)
    assert "Accept x with min(1, p(x) / q(x))" in text


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8", "ascii"])
def test_a_stdout_of_any_encoding_takes_every_text_and_its_json_can_be_read_back(encoding, monkeypatch):
    text = "é😀\u202fб"
    for write in (lambda: sys.stdout.write(text + "\n"), lambda: print_json({"text": text})):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert exit_code(write) == 0
        written = stream.buffer.getvalue().decode(encoding)
        if written.startswith("{"):
            assert json.loads(written) == {"text": text}
        elif encoding == "utf-8":
            assert written == text + "\n"
        else:
            assert "\\U0001f600" in written


def test_half_a_character_in_a_name_is_shown_by_its_code(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    assert exit_code(lambda: sys.stdout.write("a\udcff.yaml: fits\n")) == 0
    assert stream.buffer.getvalue() == b"a\\udcff.yaml: fits\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["list"], ["--version"], ["--help"], ["show", "plain"], ["check", "plain"]])
def test_a_full_disk_is_one_line_and_exit_two(arguments):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "specdec: stdout cannot be written to: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["list"], ["--version"]])
def test_a_reader_that_has_left_is_no_message_and_exit_141(arguments):
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([*COMMAND, *arguments], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
def test_a_closed_stdout_is_one_line_and_exit_two():
    result = subprocess.run(["sh", "-c", f"{sys.executable} -m specdec list >&-"], stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "specdec: stdout is closed: there is nowhere to write to\n"


@pytest.mark.slow
def test_an_interrupt_while_modules_are_imported_is_one_line():
    code = "import signal, specdec.cli; signal.signal(signal.SIGALRM, signal.default_int_handler); "
    code += "signal.setitimer(signal.ITIMER_REAL, 0.05); specdec.cli.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 130
    assert result.stderr == "specdec: interrupted\n"
