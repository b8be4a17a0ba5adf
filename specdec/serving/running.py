"""The server as a process: address, keys, signals."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

import uvicorn

from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.files.reading import text_of
from specdec.serving.application import application
from specdec.serving.guard import Access
from specdec.serving.kv_memory import slots
from specdec.serving.limits import ServerLimits
from specdec.serving.service import Service

KEY_VARIABLE = "SPECDEC_API_KEY"
"""Environment variable with the key that requests must bring."""

SHORTEST_KEY = 16
"""Characters of a key."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and who may ask.

    host: an address or name of this machine. key_file: one key a line. insecure: no key is needed, wherever it listens.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key_file: Path | None = None
    insecure: bool = False
    hosts: Collection[str] = field(default_factory=tuple)
    origins: Collection[str] = field(default_factory=tuple)

    def access(self) -> Access:
        """Who may ask. Raises SpecError for an address that others reach without a key."""
        keys = _keys(self.key_file)
        if not keys and not self.insecure and not self.is_local:
            raise SpecError(
                f"--host {self.host}: others may reach this address: set {KEY_VARIABLE} or give --api-key-file FILE, or "
                "--insecure to serve whoever asks"
            )
        if bad := [origin for origin in self.origins if origin == "*" or "://" not in origin]:
            raise SpecError(f"--allow-origin {bad[0]}: expected the origin of a page, such as https://example.org")
        named = () if _is_address(self.host) else (self.host,)
        return Access(keys, (*self.hosts, *named), self.origins)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or (_is_address(self.host) and ip_address(self.host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _keys(file: Path | None) -> tuple[str, ...]:
    lines = [os.environ.get(KEY_VARIABLE, "")] + ([] if file is None else text_of(file).splitlines())
    keys = tuple(line.strip() for line in lines if line.strip())
    if file is not None and not keys:
        raise SpecError(f"--api-key-file {file}: holds no key; expected one a line")
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise SpecError(f"an API key is shorter than {SHORTEST_KEY} characters; `openssl rand -hex 32` makes a good one")
    return keys


HASTE = 2
"""The signal after which nothing is waited for but the step that runs."""

LAST_STEP = 10.0
"""Seconds that a step may take which runs when the server ends."""

TICK = 1.0
"""Seconds between two looks at the clock, from which answers have their date."""


class Server(uvicorn.Server):
    """uvicorn's, which takes no new requests from the first signal on."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = asyncio.Event()
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish what runs and answer what waits with 503; the second time what runs, too; the third time leave at once."""
        self._signals += 1
        self._service.engine.queue.drain(stops=self._signals > 1)
        if self._signals != HASTE:
            super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        """Shut down. It may be called from any thread and from a signal's handler."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ends.set)

    def close(self) -> None:
        """End the decode thread, if a shutdown in haste has left it running."""
        self._service.engine.stop(LAST_STEP)

    async def main_loop(self) -> None:
        """As uvicorn's own, which wakes ten times a second: 2 ms of each second on a busy machine, measured."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0) and not self.should_exit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), TICK)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """drafters: by model, the names of its drafters. control_tokens: what becomes of those in a chat's messages."""

    drafters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    control_tokens: str = "escape"
    access_log: bool = False


def server(
    decoders: Mapping[str, Decoder],
    address: Address,
    limits: ServerLimits,
    access: Access,
    options: ServerOptions | None = None,
) -> Server:
    """A server that is ready to run; `run(sockets)` returns after a signal."""
    chosen = options or ServerOptions()
    service = Service(decoders, limits, slots(list(decoders.values()), limits.kv_bytes), chosen.drafters)
    config = uvicorn.Config(
        application(service, access, control_tokens=chosen.control_tokens),
        host=address.host,
        port=address.port,
        log_level="info",
        access_log=chosen.access_log,
        server_header=False,
        timeout_graceful_shutdown=int(limits.shutdown_seconds),
    )
    return Server(config, service)


def run(server: Server, place: socket.socket) -> None:
    """Serve until a signal, and return when what runs has been answered; a second one does not wait for it."""
    settle()
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[place])
    finally:
        server.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def settle() -> None:
    """Tell the collector of garbage that what has been loaded stays: it would look through half a million objects again."""
    gc.collect()
    gc.freeze()


def listening(address: Address) -> socket.socket:
    """A socket at the address. Raises SpecError where there is none to be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((address.host, address.port))
    except (OSError, OverflowError) as error:
        made.close()
        raise SpecError(f"--host {address.host} --port {address.port}: cannot listen there: {error}") from error
    return made
