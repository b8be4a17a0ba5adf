"""Many clients at once: requests join the batch and leave it, wait, give up, vanish; the others notice nothing."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from specdec.decoding.requests import Request
from specdec.targets.tabular import Tabular, TabularTargetOptions

LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0}


class SlowTarget(Tabular):
    """A table that takes its time, and that stands still while `gate` is closed."""

    def __init__(self, options):
        super().__init__(options)
        self.gate = threading.Event()
        self.gate.set()

    def score(self, state, trees):
        self.gate.wait(10)
        time.sleep(0.005)
        return super().score(state, trees)


@pytest.fixture
def slow(compose, chain_of):
    """A decoder that takes 5 ms a step."""
    options = TabularTargetOptions(vocab=26, random={"order": 1, "seed": 1}, max_positions=600)
    return compose(SlowTarget(options), chain_of(1), "anti")


def settled(server):
    """Wait until nothing runs and nothing waits; whether it came to that."""
    queue = server.service.engine.queue
    for _ in range(1500):
        if queue.free_places == queue.places and not len(queue):
            return True
        time.sleep(0.01)
    return False


def streamed(client, **body):
    """The text of a stream, and how it ended."""
    text, reasons = "", []
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["text"]
                reasons.append(choice["finish_reason"])
    return text, reasons[-1]


def test_sixteen_streams_at_once_each_get_the_answer_that_they_get_alone(serve, decoder):
    asked = [
        {"prompt": "ab" * (1 + number), "max_tokens": 4 + 2 * number, "seed": number, "temperature": number % 3 / 2}
        for number in range(16)
    ]
    alone = [
        decoder.generate(
            Request(
                one["prompt"],
                max_new_tokens=one["max_tokens"],
                seed=one["seed"],
                sampling={"temperature": one["temperature"]},
            )
        )[0]
        for one in asked
    ]
    with serve({"tiny": decoder}, max_running=5) as server, ThreadPoolExecutor(16) as pool:
        with server.client() as client:
            answers = list(pool.map(lambda one: streamed(client, **one), asked))
        assert settled(server)
    assert answers == [(one.text, one.finish_reason) for one in alone]


def test_two_hundred_requests_wait_their_turn_and_the_rest_is_told_when_to_come_again(serve, slow):
    with (
        serve({"slow": slow}, max_running=4, max_waiting=196) as server,
        ThreadPoolExecutor(8) as pool,
        server.client() as client,
    ):
        slow.target.gate.clear()
        asked = {"prompt": ["a"] * 40, "max_tokens": 2}
        waiting = [pool.submit(client.post, "/v1/completions", json=asked) for _ in range(5)]
        while len(server.service.engine.queue) < 196:
            time.sleep(0.005)
        full = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert full.status_code == 429
        assert full.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(full.headers["retry-after"]) <= 60
        slow.target.gate.set()
        assert {len(answer.result().json()["choices"]) for answer in waiting} == {40}
        assert settled(server)


def sent(wire, server, **body):
    """Send a request by hand."""
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    wire.connect((urlsplit(server.url).hostname, urlsplit(server.url).port))
    wire.sendall(head.encode() + b"\r\n\r\n" + text)


def test_a_client_that_leaves_takes_its_request_out_of_the_batch(serve, slow):
    with serve({"slow": slow}, max_running=1) as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json={"prompt": "a", **LONG, "stream": True}) as response:
            next(response.iter_lines())
        assert settled(server)
        with socket.socket() as wire:
            sent(wire, server, prompt="a", **LONG)
            while server.service.engine.queue.free_places:
                time.sleep(0.002)
        assert settled(server)
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200


def test_one_that_waits_and_leaves_is_forgotten(serve, slow):
    with serve({"slow": slow}, max_running=1) as server, server.client() as client, server.client() as other:
        with client.stream("POST", "/v1/completions", json={"prompt": "a", **LONG, "stream": True}) as running:
            lines = running.iter_lines()
            next(lines)
            with pytest.raises(Exception, match="timed out"):
                other.post("/v1/completions", json={"prompt": "b", **LONG}, timeout=0.05)
            while len(server.service.engine.queue):
                next(lines)
        assert settled(server)


def test_a_reader_that_reads_nothing_makes_nobody_wait(serve, decoder):
    limits = {"max_running": 2, "send_seconds": 0.2}
    with serve({"tiny": decoder}, **limits) as server, server.client() as client, socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent(wire, server, prompt="a", **LONG, logprobs=20, stream=True)
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 30}).status_code == 200
        assert settled(server)


def test_what_takes_too_long_is_ended_with_an_error(serve, slow):
    with serve({"slow": slow}, max_running=1, request_seconds=0.4) as server, server.client() as client:
        late = client.post("/v1/completions", json={"prompt": "a", **LONG})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "request_timeout")
        with client.stream("POST", "/v1/completions", json={"prompt": "a", **LONG, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert response.status_code == 200
        assert json.loads(lines[-2][6:])["error"]["code"] == "request_timeout"
        assert lines[-1] == "data: [DONE]"
        assert settled(server)


def test_what_waits_too_long_is_answered_before_a_stream_begins(serve, slow):
    with serve({"slow": slow}, max_running=1, queue_seconds=0.4) as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json={"prompt": "a", **LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            late = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "stream": True})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
        assert "retry-after" in late.headers


def test_a_shutdown_finishes_what_runs_and_turns_away_what_waits(serve, slow):
    with serve({"slow": slow}, max_running=1) as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        running = pool.submit(streamed, client, prompt="a", max_tokens=40, ignore_eos=True)
        while server.service.engine.queue.free_places:
            time.sleep(0.002)
        waiting = pool.submit(client.post, "/v1/completions", json={"prompt": "b", "max_tokens": 5})
        while not len(server.service.engine.queue):
            time.sleep(0.002)
        server.service.engine.queue.drain()
        assert waiting.result().status_code == 503
        assert client.get("/health").status_code == 503
        refused = client.post("/v1/completions", json={"prompt": "b", "max_tokens": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        server.server.end()
        text, reason = running.result()
    assert (len(text), reason) == (40, "length")


def test_a_failing_step_ends_the_batch_and_the_server_goes_on(serve, slow):
    score, fails = slow.target.score, threading.Event()

    def failing(state, trees):
        if fails.is_set():
            fails.clear()
            raise RuntimeError("a fault of the machine")
        return score(state, trees)

    slow.target.score = failing
    with serve({"slow": slow}, max_running=2) as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json={"prompt": "a", **LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            fails.set()
            rest = [line for line in lines if line]
        assert json.loads(rest[-2][6:])["error"]["type"] == "server_error"
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
        assert settled(server)


def test_memory_of_caches_is_not_given_out_twice(serve, slow):
    with serve({"slow": slow}, max_running=8) as server, server.client() as client, ThreadPoolExecutor(4) as pool:
        queue = server.service.engine.queue
        queue.slots = 100
        never = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 100})
        assert (never.status_code, never.json()["error"]["code"]) == (400, "exceeds_memory")
        asked = {"prompt": "a", "max_tokens": 59, "ignore_eos": True}
        slow.target.gate.clear()
        answers = [pool.submit(client.post, "/v1/completions", json=asked) for _ in range(2)]
        while queue.free_places == queue.places or not len(queue):
            time.sleep(0.002)
        assert queue.used_share == 0.6
        slow.target.gate.set()
        assert {answer.result().status_code for answer in answers} == {200}
        assert settled(server)
        assert queue.used_share == 0


def test_a_second_signal_ends_what_runs_with_an_error_of_its_own(serve, slow):
    asked = {"json": {"prompt": "a", **LONG, "stream": True}}
    with (
        serve({"slow": slow}, max_running=1) as server,
        server.client() as client,
        client.stream("POST", "/v1/completions", **asked) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.server.handle_exit(signal.SIGTERM, None)
        assert len([next(lines) for _ in range(10)]) == 10
        server.server.handle_exit(signal.SIGTERM, None)
        rest = [line for line in lines if line]
        assert json.loads(rest[-2][6:])["error"]["code"] == "shutting_down"
        assert rest[-1] == "data: [DONE]"
        assert not server.service.engine.is_alive
