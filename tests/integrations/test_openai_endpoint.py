"""An OpenAI-compatible endpoint, by a small server in the test: what is sent, the forms of answers, and errors."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import SpecError
from specdec.integrations.openai_endpoint import Endpoint
from specdec.losslessness.external.callables import ask
from specdec.sampling.params import SamplingParams

P = np.array([0.5, 0.3, 0.2])


class Server(BaseHTTPRequestHandler):
    """Draws from P, or from the square of it where the model is called 'sharp'."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), asked))
        rows = P**2 / (P**2).sum() if asked["model"] == "sharp" else P
        drawn = np.random.default_rng(asked["seed"]).choice(3, asked["max_tokens"], p=rows).tolist()
        status, choice = self.server.form(drawn)
        body = json.dumps({"choices": [choice]} if status == 200 else {"error": choice}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Nothing."""


FORMS = {
    "token_ids": lambda drawn: {"token_ids": drawn, "logprobs": {"token_logprobs": np.log(P[drawn]).tolist()}},
    "token_id names": lambda drawn: {"logprobs": {"tokens": [f"token_id:{token}" for token in drawn]}},
    "content": lambda drawn: {"logprobs": {"content": [{"id": token, "logprob": float(np.log(P[token]))} for token in drawn]}},
}


@pytest.fixture
def server():
    found = HTTPServer(("127.0.0.1", 0), Server)
    found.seen, found.form = [], lambda drawn: (200, FORMS["token_ids"](drawn))
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.url = f"http://127.0.0.1:{found.server_port}/v1"
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_prompts_and_sampling_are_sent_as_ids_and_numbers(server):
    endpoint = Endpoint(server.url + "/", "mine", SamplingParams(temperature=0.7, top_p=0.9), key="secret")
    ask(endpoint, [1, 2], 4, 1 << 40, 3)
    path, headers, asked = server.seen[0]
    assert path == "/v1/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert (asked["prompt"], asked["max_tokens"], asked["temperature"], asked["top_p"]) == ([1, 2], 4, 0.7, 0.9)
    assert 0 <= asked["seed"] < 2**31


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_read_in_every_form_that_servers_give_them(server, form):
    expected = ask(Endpoint(server.url, "mine", SamplingParams(temperature=1.0)), [1], 6, 9, 3)
    server.form = lambda drawn: (200, FORMS[form](drawn))
    asked = ask(Endpoint(server.url, "mine", SamplingParams(temperature=1.0)), [1], 6, 9, 3)
    assert asked.tokens == expected.tokens
    assert asked.logprobs in (None, expected.logprobs)


@pytest.mark.parametrize(
    ("status", "choice", "words"),
    [(404, "no such model", "status 404: .*no such model"), (200, {"text": "hello"}, "does not say which ids")],
)
def test_what_a_server_refuses_or_leaves_out_is_reported(server, status, choice, words):
    server.form = lambda drawn: (status, choice)
    with pytest.raises(SpecError, match=words):
        Endpoint(server.url, "mine", SamplingParams(temperature=1.0))([1], 4, 0)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "file:///etc/hosts", "http://"])
def test_other_addresses_are_refused(url):
    with pytest.raises(SpecError, match="expected an address such as"):
        Endpoint(url, "mine", SamplingParams(temperature=1.0))


@pytest.mark.parametrize(("model", "code"), [("mine", (0, 3)), ("sharp", (1,))])
def test_verify_judges_an_endpoint(server, model, code):
    table = 'target={use: tabular, vocab: 3, rows: {"*": [0.5, 0.3, 0.2]}}'
    options = ["--set", table, "--set", "sampling.temperature=1", "--budget", "0.3"]
    result = CliRunner().invoke(app, ["verify", "--peer", f"{server.url}#{model}", *options])
    assert result.exit_code in code, result.output
    assert "from p's on average" in result.output


def test_an_endpoint_takes_part_in_a_benchmark(server, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"question_id": 0, "category": "a", "turns": ["abc", "de"]}) + "\n")
    table = {"use": "tabular", "vocab": 26, "random": {"order": 1}}
    (tmp_path / "letters.yaml").write_text(
        json.dumps({"target": table, "drafter": "ngram", "tree": "chain", "verifier": "match"})
    )
    files = ["-s", str(tmp_path / "letters.yaml"), "--prompts", str(tmp_path / "q.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    name = f"{server.url}#mine"
    done = CliRunner().invoke(app, ["bench", *files, "--peer", name, "--max-new-tokens", "4", "--temperature", "0.7", "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["contender"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"plain", "letters", name}
    assert {asked["temperature"] for _, _, asked in server.seen} == {0.7}
    assert all(asked["max_tokens"] == 4 for _, _, asked in server.seen)


def test_a_benchmark_refuses_an_endpoint_without_a_model(tmp_path, server):
    done = CliRunner().invoke(app, ["bench", "-s", "ngram-tree", "--prompts", "q.jsonl", "--peer", server.url])
    assert (done.exit_code, "the model's name is missing" in done.output) == (2, True)
