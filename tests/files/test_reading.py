"""Why a file cannot be read is said in one way, without Python's own words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import SpecError
from specdec.files.reading import bytes_of, text_of


def test_a_file_that_cannot_be_read_is_named_once_with_the_reason(tmp_path):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    for read in (text_of, bytes_of):
        with pytest.raises(SpecError) as caught:
            read(tmp_path / "gone.txt")
        assert str(caught.value) == f"{tmp_path / 'gone.txt'}: cannot be read: No such file or directory"
        with pytest.raises(SpecError, match="cannot be read: embedded null byte"):
            read(Path("a\0b"))
    with pytest.raises(SpecError, match=r"^--here: cannot be read: Is a directory$"):
        text_of(tmp_path, "--here")
    with pytest.raises(SpecError, match=r"latin\.txt: not UTF-8 text \(byte 0\)$"):
        text_of(tmp_path / "latin.txt")


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "plain", "--prompt-file", "gone"],
        ["report", "gone"],
        ["compare", "gone", "gone"],
        ["trace", "show", "gone"],
        ["check", "./gone.yaml"],
        ["data", "distill", "gone", "own.jsonl"],
        ["train", "gone"],
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_no_command_shows_the_number_of_an_error(words, is_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if is_folder:
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone.yaml").mkdir()
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "Errno" not in result.stderr
    assert "gone" in result.stderr
