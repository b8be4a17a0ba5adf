import errno
import os
import re
import threading

import pytest
import torch
from safetensors.torch import save_file

from specdec.errors import SpecError
from specdec.files.atomic import disk_reason, whole_file, write_whole, writing


def save_torch(path):
    with path.open("wb") as file:
        torch.save({"x": torch.zeros(100_000)}, file)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_alone_with_the_folders_above_it(tmp_path):
    write_whole(tmp_path / "a" / "x.txt", "é")
    write_whole(tmp_path / "a" / "x.txt", b"second")
    assert (tmp_path / "a" / "x.txt").read_bytes() == b"second"
    assert names(tmp_path / "a") == ["x.txt"]


@pytest.mark.parametrize(
    "save",
    [
        lambda path: path.write_text("x" * 100_000),
        save_torch,
        lambda path: save_file({"x": torch.zeros(100_000)}, path),
    ],
    ids=["text", "torch", "safetensors"],
)
def test_where_there_is_no_room_the_file_and_the_reason_are_named_and_what_was_there_stays(tmp_path, save, room_for):
    path = tmp_path / "x.bin"
    path.write_text("before")
    reason = re.escape(f"{path}: cannot be written: {os.strerror(errno.EFBIG)}")
    with room_for(4096), pytest.raises(SpecError, match=reason), whole_file(path) as scratch:
        save(scratch)
    assert path.read_text() == "before"
    assert names(tmp_path) == ["x.bin"]


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    def interrupted(scratch):
        scratch.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "x") as scratch:
        interrupted(scratch)
    assert names(tmp_path) == []


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "x"):
        raise ZeroDivisionError
    with pytest.raises(SpecError, match=r"^mine$"), writing(tmp_path / "x"):
        raise SpecError("mine")


@pytest.mark.parametrize("name", ["n" * 255, "[a]*?", ".hidden"])
def test_long_and_odd_names_are_written(tmp_path, name):
    write_whole(tmp_path / name, "x")
    assert names(tmp_path) == [name]


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "x", tmp_path / "folder", tmp_path / ("n" * 300)):
        with pytest.raises(SpecError) as error:
            write_whole(path, "x")
        assert str(error.value).startswith(f"{path}: cannot be written: ")
    assert names(tmp_path) == ["file", "folder"]


def test_a_device_is_written_to_and_stays_one(tmp_path):
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_whole(link, "x")
    assert link.is_symlink()
    link.unlink()
    link.symlink_to("/dev/full")
    with pytest.raises(SpecError, match=os.strerror(errno.ENOSPC)):
        write_whole(link, "x")


def test_writers_of_one_file_at_a_time_each_write_a_whole_one(tmp_path):
    path, failures = tmp_path / "x", []

    def write(letter):
        for _ in range(20):
            try:
                write_whole(path, letter * 10_000)
            except SpecError as error:
                failures.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(path.read_text())) == 1
    assert names(tmp_path) == ["x"]


def test_a_reason_that_a_library_only_quotes_is_found():
    quoted = RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")
    assert disk_reason(quoted) == os.strerror(errno.ENOSPC)
    wrapped = RuntimeError("failed")
    wrapped.__cause__ = quoted
    assert disk_reason(wrapped) == os.strerror(errno.ENOSPC)
    assert disk_reason(RuntimeError("other")) is None
