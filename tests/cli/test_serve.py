"""`specdec serve`: what is refused before anything is loaded, and a server from its start to a signal."""

import os
import signal
import socket
import threading
import time

import openai
import pytest
import yaml
from tiny_chat import save_tiny_chat
from typer.testing import CliRunner

from specdec.cli import app
from specdec.serving.running import KEY_VARIABLE


@pytest.fixture
def strategy(tmp_path):
    """A strategy with a tiny chat model."""
    target = {"use": "huggingface", "model": str(save_tiny_chat(tmp_path / "model")), "dtype": "float32", "device": "cpu"}
    spec = {"name": "tiny", "source": "a test", "target": target, "drafter": "ngram", "tree": "chain", "verifier": "match"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(spec))
    return str(tmp_path / "tiny.yaml")


def serve(*arguments):
    return CliRunner().invoke(app, ["serve", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "SPECDEC_API_KEY"),
        (("--limit", "max_waiting"), "expected KEY=VALUE"),
        (("--limit", "max_wating=3"), "did you mean 'max_waiting'"),
        (("--limit", "max_waiting=-1"), "at least 0"),
        (("--control-tokens", "maybe"), "expected allow, refuse or escape"),
        (("--allow-origin", "*"), "expected the origin"),
        (("--host", "192.0.2.1", "--insecure"), "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_loaded(arguments, message, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    result = serve("adaptive", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "specdec.serving.running", None)
    result = serve("adaptive")
    assert result.exit_code == 2
    assert "pip install 'specdec[serve]'" in result.stderr


def free_port():
    with socket.socket() as wire:
        wire.bind(("127.0.0.1", 0))
        return wire.getsockname()[1]


def test_openais_client_is_answered_until_a_signal_ends_the_server(strategy, monkeypatch):
    key, port, seen = "a key that is long enough", free_port(), {}
    monkeypatch.setenv(KEY_VARIABLE, key)

    def ask():
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=20)
        for _ in range(200):
            try:
                seen["models"] = [model.id for model in client.models.list()]
                break
            except openai.APIConnectionError:
                time.sleep(0.02)
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9, "seed": 3}
        try:
            seen["answer"] = client.chat.completions.create(**asked, temperature=1.0)
            seen["chunks"] = list(
                client.chat.completions.create(**asked, temperature=1.0, stream=True, stream_options={"include_usage": True})
            )
            seen["plain"] = client.completions.create(model="plain", prompt="abc", max_tokens=3, extra_body={"top_k": 4})
            client.chat.completions.create(**{**asked, "model": "gpt-4"})
        except openai.OpenAIError as error:
            seen["error"] = error
        finally:
            client.close()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    thread.start()
    result = serve(strategy, "--port", str(port), "--with-plain", "--max-running", "2")
    thread.join()
    assert result.exit_code == 0, result.output
    assert f"http://127.0.0.1:{port}/v1, page http://127.0.0.1:{port}/ (an API key is needed)" in result.output
    assert seen["models"] == ["tiny", "plain"]
    answer, chunks = seen["answer"], seen["chunks"]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens == 9
    assert answer.usage.speculation["target_forwards"] >= 1
    assert seen["plain"].usage.speculation["tau"] == 1.0
    assert isinstance(seen["error"], openai.NotFoundError)
    assert seen["error"].code == "model_not_found"
