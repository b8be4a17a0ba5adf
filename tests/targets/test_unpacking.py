import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from filelock import FileLock

from specdec.errors import CheckpointError, SpecdecWarning
from specdec.targets import gguf_cache
from specdec.targets.unpacking import changed_files, unpacked

CONTENTS = {"config.json": '{"rope": 1}', "model.safetensors": "weights", "chat_template.jinja": "template"}


class Writer:
    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        for name, text in CONTENTS.items():
            (folder / name).write_text(text)


@pytest.fixture
def write():
    return Writer()


@pytest.fixture
def folder(tmp_path, write):
    return unpacked(tmp_path / "cache" / "model", write)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.name in CONTENTS}


def retimed(path):
    """The file with the time that it had, so that only its bytes tell."""
    status = path.stat()
    path.write_text(path.read_text()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_unpacked_folder_is_used_again_as_it_is(folder, write):
    assert unpacked(folder, write) == folder
    assert write.calls == 1
    assert contents(folder) == CONTENTS


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text('{"rope": 2}'),
        lambda folder: (folder / "config.json").write_text(""),
        lambda folder: (folder / "chat_template.jinja").unlink(),
        lambda folder: (folder / "model.safetensors").write_text("sthgiew"),
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
    ],
    ids=["edited", "emptied", "deleted", "overwritten", "added"],
)
def test_a_changed_folder_is_unpacked_again_and_the_files_are_named(folder, write, damage):
    damage(folder)
    with pytest.warns(SpecdecWarning, match=r"was changed since it was unpacked \((config|chat|model|adapter)"):
        unpacked(folder, write)
    assert write.calls == 2
    assert {path.name for path in folder.iterdir()} == {*CONTENTS, "unpacked.json"}
    assert contents(folder) == CONTENTS


def test_bytes_that_changed_within_size_and_time_are_found_on_request(folder, write):
    retimed(folder / "model.safetensors")
    assert changed_files(folder) == []
    with pytest.warns(SpecdecWarning, match=r"model\.safetensors"):
        unpacked(folder, write, hashes=True)
    assert contents(folder) == CONTENTS


def test_a_copy_with_other_times_is_hashed_once_and_used(folder, write):
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert unpacked(folder, write) == folder
    assert write.calls == 1
    assert json.loads((folder / "unpacked.json").read_text())["files"]["model.safetensors"]["mtime_ns"] == 1


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"files": {}}', '{"files": {"config.json": 1}}', "[" * 100_000])
def test_a_folder_without_a_record_that_can_be_read_is_unpacked_again(folder, write, record, recwarn):
    (folder / "config.json").write_text("of an earlier version")
    (folder / "unpacked.json").unlink()
    if record is not None:
        (folder / "unpacked.json").write_text(record)
    unpacked(folder, write)
    assert contents(folder) == CONTENTS
    assert len(recwarn) == (record is not None)


def test_what_an_interrupted_unpacking_left_behind_goes(tmp_path, write):
    left = tmp_path / "cache" / ".unpacking-abc" / "model"
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    unpacked(tmp_path / "cache" / "model", write)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"model", ".unpacking.lock"}


def test_what_an_interrupted_unpacking_left_beside_a_sound_folder_goes_too(folder, write):
    (folder.parent / ".unpacking-abc").mkdir()
    assert unpacked(folder, write) == folder
    assert not (folder.parent / ".unpacking-abc").exists()
    assert write.calls == 1


def test_an_unpacking_that_is_under_way_is_left_alone(folder, write):
    (folder.parent / ".unpacking-abc").mkdir()
    with FileLock(folder.parent / ".unpacking.lock"):
        assert unpacked(folder, write) == folder
    assert (folder.parent / ".unpacking-abc").exists()


def test_of_two_threads_one_unpacks(tmp_path, write):
    def slowly(folder):
        time.sleep(0.1)
        write(folder)

    threads = [threading.Thread(target=unpacked, args=(tmp_path / "model", slowly)) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert write.calls == 1


@pytest.mark.slow
def test_of_two_processes_one_unpacks(tmp_path):
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from specdec.targets.unpacking import unpacked

        def write(folder):
            with open(sys.argv[2], "a") as log:
                log.write("x")
            time.sleep(0.5)
            (folder / "config.json").write_text("{}")

        unpacked(Path(sys.argv[1]), write)
    """)
    log = tmp_path / "log"
    command = [sys.executable, "-c", script, str(tmp_path / "cache" / "model"), str(log)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert log.read_text() == "x"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["system", "quoted"],
)
def test_a_full_disk_names_the_folder_and_the_way_to_another_one(tmp_path, error):
    def write(folder):
        (folder / "config.json").write_text("half")
        raise error

    with pytest.raises(CheckpointError, match=r"model: No space left on device; set SPECDEC_CACHE to another folder"):
        unpacked(tmp_path / "cache" / "model", write)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name != ".unpacking.lock"] == []


def test_damage_that_cannot_be_repaired_says_which_folder_to_delete(folder):
    def write(_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (folder / "config.json").unlink()
    with pytest.warns(SpecdecWarning), pytest.raises(CheckpointError, match=f"delete {folder}"):
        unpacked(folder, write)


def test_a_cache_that_is_a_file_is_an_error_with_its_name(tmp_path, write):
    (tmp_path / "cache").write_text("")
    with pytest.raises(CheckpointError, match=r"cache/model: .*set SPECDEC_CACHE to another"):
        unpacked(tmp_path / "cache" / "model", write)


def test_a_fault_of_the_writer_itself_is_not_taken_for_the_disks(tmp_path):
    def write(_):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        unpacked(tmp_path / "model", write)


def test_the_embedded_model_is_verified_whenever_its_folder_is_asked_for(monkeypatch, tmp_path):
    written = []
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf_cache, "_write", lambda source, folder: written.append(source) or Writer()(folder))
    folder = gguf_cache.unpacked_folder()
    retimed(folder / "config.json")
    assert gguf_cache.unpacked_folder() == folder
    monkeypatch.setenv("SPECDEC_VERIFY_CACHE", "1")
    with pytest.warns(SpecdecWarning, match=r"config\.json"):
        gguf_cache.unpacked_folder()
    assert len(written) == 2
