"""A tiny chat model, and servers of it in this process."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import pytest
import uvicorn
from tiny_chat import save_tiny_chat

import specdec
from specdec.decoding.decoder import Decoder
from specdec.serving.application import application
from specdec.serving.guard import Access
from specdec.serving.limits import ServerLimits
from specdec.serving.running import Address, Server, listening
from specdec.serving.service import Service

SPEC = {
    "target": {"use": "huggingface", "dtype": "float32", "device": "cpu"},
    "drafter": {"use": "ngram"},
    "tree": {"use": "dynamic", "width": 2, "depth": 4, "nodes": 8},
    "verifier": {"use": "match"},
}


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory):
    """The folder of a model."""
    return save_tiny_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="session")
def decoder(tiny_chat) -> Decoder:
    """A decoder of it."""
    return specdec.load({**SPEC, "name": "tiny", "target": {**SPEC["target"], "model": str(tiny_chat)}})


@dataclass(frozen=True)
class Running:
    """A server on a port of its own."""

    url: str
    service: Service
    server: Server

    def client(self, **options) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=30, **options)


@contextmanager
def running(decoders, access=None, **limits):
    """A server in a thread."""
    limits = ServerLimits(**limits)
    service = Service(decoders, limits)
    app = application(service, access or Access())
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=10)
    server = Server(config, service)
    with listening(Address(port=0)) as place:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[place])))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                threading.Event().wait(0.005)
            yield Running(f"http://127.0.0.1:{place.getsockname()[1]}", service, server)
        finally:
            server.end()
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def serve():
    """Start a server: `with serve({name: decoder}, **limits) as running`."""
    return running


@pytest.fixture(scope="module")
def server(decoder):
    """One server for a module's tests."""
    with running({"tiny": decoder}, max_running=4) as made:
        yield made


@pytest.fixture
def client(server):
    with server.client() as made:
        yield made


@pytest.fixture
def ask(client):
    """Post to an endpoint; returns the response."""

    def post(path="completions", **body):
        return client.post(f"/v1/{path}", json=body)

    return post
