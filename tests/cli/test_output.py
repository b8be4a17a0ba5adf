"""Output that cannot be written, and interrupts: one line and an exit code, whatever the command."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdec.cli import app

COMMAND = [sys.executable, "-m", "specdec"]


def test_a_narrow_terminal_shows_whole_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    shown = CliRunner().invoke(app, ["list", "verifiers"]).stdout.splitlines()
    assert "multi_round" in shown
    assert max(map(len, shown)) <= 30
    text = " ".join(line.strip() for line in shown)
    assert "Accept x with min(1, p(x) / q(x))" in text


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
