"""Names of models that lead nowhere are told at once; the hub is asked once, for a few seconds."""

import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from specdec.errors import TargetMismatch
from specdec.targets.hub import cached_folder, hub_answers, local_folder
from specdec.targets.quiet import quiet

NOWHERE = "http://127.0.0.1:9"


@contextmanager
def hub_that_says(status, fault=None):
    """The endpoint of a server that answers every request alike; and the paths that it was asked for."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(status)
            for name, value in {"X-Repo-Commit": "0" * 40, "ETag": '"e"', "Content-Length": "2"}.items():
                self.send_header(name, value)
            if fault is not None:
                self.send_header("X-Error-Code", fault)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def models(tmp_path, monkeypatch):
    for name in ("small-llama", "large-llama"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    (tmp_path / "weights.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/such/folder", "../nowhere/", "~/no-such-folder", "nosuch", "a/b/c", "a b/c"]
)
def test_what_is_neither_a_folder_nor_a_hub_id_is_named(models, name):
    with pytest.raises(TargetMismatch, match=f"no folder '{name}'"):
        local_folder(name)


def test_the_nearest_model_is_offered(models):
    with pytest.raises(TargetMismatch, match="did you mean 'small-llama'"):
        local_folder("smal-llama")
    with pytest.raises(TargetMismatch, match=f"did you mean '{models}/large-llama'"):
        local_folder(f"{models}/large-lama")
    with pytest.raises(TargetMismatch, match="did you mean 'builtin'"):
        local_folder("buitlin")
    with pytest.raises(TargetMismatch, match=r"at hand: builtin, large-llama, small-llama$"):
        local_folder("xyz")


def test_a_file_is_no_model(models):
    with pytest.raises(TargetMismatch, match="is a file"):
        local_folder("weights.gguf")


def test_folders_win_over_hub_ids(models):
    assert local_folder("small-llama") is not None
    assert local_folder("organisation/model") is None


def test_a_hub_that_answers_is_asked_once():
    with hub_that_says(200) as (endpoint, asked):
        assert hub_answers("organisation/model", "v2", endpoint=endpoint)
    assert asked == ["/organisation/model/resolve/v2/config.json"]


@pytest.mark.parametrize(
    ("status", "fault", "message"),
    [
        (404, "RepoNotFound", "the hub has no repository 'organisation/model'"),
        (404, "RevisionNotFound", "has no revision 'v2'"),
        (404, "EntryNotFound", "has no config.json"),
        (403, "GatedRepo", "is gated"),
        (503, None, "out of reach"),
    ],
)
def test_what_the_hub_lacks_is_told_after_one_request(capfd, status, fault, message):
    with hub_that_says(status, fault) as (endpoint, asked), quiet(), pytest.raises(TargetMismatch, match=message) as error:
        hub_answers("organisation/model", "v2", endpoint=endpoint)
    assert "\n" not in str(error.value)
    assert len(asked) == 1
    assert capfd.readouterr() == ("", "")


def test_a_hub_out_of_reach_is_told_in_one_line_and_in_no_time(capfd):
    start = time.monotonic()
    with pytest.raises(TargetMismatch, match="no folder 'nobody/no-such-model', nor is it in the hub's local cache") as error:
        hub_answers("nobody/no-such-model", None, endpoint=NOWHERE)
    assert time.monotonic() - start < 3
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_what_is_not_cached_has_no_folder():
    assert cached_folder("nobody/no-such-model", None) is None
    assert cached_folder("no id at all", None) is None
