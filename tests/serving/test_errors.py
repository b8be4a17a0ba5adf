"""Every refusal has its status, the field that is wrong, and OpenAI's form."""

import json
import socket
import threading
from urllib.parse import urlsplit

import pytest

import specdec

USER = [{"role": "user", "content": "hi"}]


def refusal(response, status):
    """The error of a response with this status."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("wrong", "param", "message"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"max_tokens": "9"}, "max_tokens", "expected a whole number"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 99999}, "max_tokens", "at most 4096"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"temperature": 1e-9}, "temperature", "0, which is greedy"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"n": 17}, "n", "at most 16"),
        ({"n": 5, "temperature": 1}, "n", "4 sequences at once"),
        ({"logprobs": 99}, "logprobs", "at most 20"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"99999": 1}}, None, "outside the target's vocabulary"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "at most 1024"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stop": "x" * 257}, "stop", "at most 256"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop_token_ids": [99999]}, None, "outside the target's vocabulary"),
        ({"min_tokens": 20, "max_tokens": 10}, None, "exceeds"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": ""}, None, "is empty"),
        ({"prompt": [1, "a"]}, "prompt", "expected"),
        ({"prompt": [99999]}, None, "outside the target's vocabulary"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
        ({"prompt": "x" * 600}, "messages", "600 tokens; the target's context holds 512"),
        ({"echo": True}, "echo", "not supported"),
        ({"best_of": 3}, "best_of", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"prediction": {"type": "content", "content": "a"}}, "prediction", "unknown field"),
        ({"allow_lossy": True}, "allow_lossy", "only the strategy"),
        ({"chat_template": "{{ x }}"}, "chat_template", "not taken from a request"),
        ({"trust_remote_code": True}, "trust_remote_code", "not taken from a request"),
        ({"strategy": "/etc/passwd"}, "strategy", "not taken from a request"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"foo": 1}}, "stream_options", "unknown field"),
        ({"return_draft_sources": True}, "return_draft_sources", "needs stream"),
        ({"response_format": {"type": "xml"}}, "response_format", "got 'xml'"),
        ({"response_format": {"type": "regex", "regex": "a" * 70_000}}, "response_format", "more than 65536 bytes"),
        ({"response_format": {"type": "regex", "regex": "(("}}, "response_format", "cannot be compiled"),
    ],
)
def test_a_wrong_field_is_refused_by_name(ask, wrong, param, message):
    error = refusal(ask(**{"prompt": "abc", **wrong}), 400)
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert param in (error["param"], None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "a list"),
        ({"messages": [{"role": "user"}]}, "has no 'content'"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "robot"),
        ({"messages": [{**USER[0], "tool_calls": [1]}]}, "messages[0].tool_calls: unknown field"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [*USER, {"role": "assistant", "content": "a"}]}, "continue_final_message"),
        ({"messages": USER * 1025}, "at most 1024"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "differs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": False}}, "set by specdec itself"),
        ({"chat_template_kwargs": {"foo": 1}}, "reads no 'foo'"),
        ({"prompt": "a"}, "unknown field"),
    ],
)
def test_a_wrong_conversation_is_refused(ask, wrong, message):
    assert message in refusal(ask("chat/completions", **{"messages": USER, **wrong}), 400)["message"]


def test_several_mistakes_are_told_at_once(ask):
    message = refusal(ask(prompt="a", foo=1, n="x"), 400)["message"]
    assert "foo: unknown field" in message
    assert "n: got" in message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[1]", None),
        (b"\xff\xfe", "invalid_json"),
        (b'{"prompt": NaN}', "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_value"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"prompt": ' + b"[" * 70 + b"]" * 70 + b"}", "too_deep"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client, content, code):
    response = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert refusal(response, 400)["code"] == code


def test_a_body_of_another_kind_is_refused_so_that_no_page_elsewhere_can_send_one(client):
    response = client.post("/v1/completions", content=json.dumps({"prompt": "a"}), headers={"Content-Type": "text/plain"})
    assert "application/json" in refusal(response, 400)["message"]


def test_a_body_of_ten_megabytes_is_refused_and_the_client_reads_why(client):
    body = b'{"prompt": "' + b"a" * 10_000_000 + b'"}'
    response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert refusal(response, 413)["code"] == "body_too_large"
    assert client.get("/health").status_code == 200


def test_an_endless_body_is_not_read_to_its_end(server, client):
    with socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port)) as wire:
        wire.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        wire.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        wire.settimeout(20)
        chunk = b"%x\r\n" % 2**20 + b"a" * 2**20 + b"\r\n"
        with pytest.raises(OSError):
            wire.sendall(chunk * 100)
    assert client.get("/health").status_code == 200


def test_a_model_or_path_that_is_not_there_is_404(ask, client):
    error = refusal(ask(prompt="a", model="gpt-4"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert refusal(client.get("/v2/nothing"), 404)["code"] == "not_found"
    assert refusal(client.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert refusal(client.get(path), 404)


def test_what_this_model_cannot_do_is_422(serve):
    letters = specdec.load(
        {
            "name": "letters",
            "target": {"use": "tabular", "vocab": 26, "random": {"order": 1, "seed": 1}},
            "drafter": "ngram",
            "tree": "chain",
            "verifier": "match",
        }
    )
    with serve({"letters": letters}) as server, server.client() as client:
        error = refusal(client.post("/v1/chat/completions", json={"messages": USER}), 422)
        assert "chat template" in error["message"]
        answer = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5, "ignore_eos": True})
        assert answer.json()["choices"][0]["text"] == letters.generate("abc", max_new_tokens=5)[0].text


def test_a_fault_in_one_request_is_its_own_500_and_no_prompt_is_logged(serve, decoder, caplog):
    class Faulty:
        def __call__(self, input_ids, scores):
            raise RuntimeError("the prompt was SECRET")

        def fork(self):
            return self

    with serve({"tiny": decoder}) as server, server.client() as client:
        preparation = server.service._preparations["tiny"]
        encoded = preparation._encoded

        def spoiled(request):
            ready = encoded(request)
            if request.prompt == "SECRET":
                object.__setattr__(ready.request, "processors", (Faulty(),))
            return ready

        preparation._encoded = spoiled
        asked = {"max_tokens": 40, "temperature": 1.0, "seed": 3}
        with client.stream("POST", "/v1/completions", json={"prompt": "abc", **asked, "stream": True}) as other:
            lines = other.iter_lines()
            next(lines)
            error = refusal(client.post("/v1/completions", json={"prompt": "SECRET", **asked}), 500)
            text = "".join([json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")])
    assert "SECRET" not in error["message"]
    assert "SECRET" not in caplog.text
    assert error["type"] == "server_error"
    assert text == decoder.generate("abc", max_new_tokens=40, sampling={"temperature": 1.0}, seed=3)[0].text[-len(text) :]


def test_a_schema_that_takes_too_long_is_refused_and_others_are_answered(serve, decoder):
    held = threading.Event()
    with serve({"tiny": decoder}, compile_seconds=0.1) as server, server.client() as client:
        preparation = server.service._preparations["tiny"]
        preparation._compiled = lambda ready: held.wait(10)
        asked = {"prompt": "a", "max_tokens": 2}
        late = client.post("/v1/completions", json={**asked, "response_format": {"type": "json_object"}})
        assert "not compiled within 0.1 s" in refusal(late, 400)["message"]
        assert client.post("/v1/completions", json=asked).status_code == 200
        held.set()
