"""Who may ask: the Host and Origin of a request, and its key. Before anything else looks at a request."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from specdec.serving.api_error import AUTHENTICATION, ApiError, internal
from specdec.serving.http_answer import ClientGone, Receive, Send, error_response
from specdec.serving.lane import log

OPEN = ("/health",)
"""Paths that need no key: they say nothing but whether the server is there."""

LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    keys: of which a request must bring one, as a bearer token or as the password of basic authentication (browsers); none: no
    key is needed. hosts: names under which the server may be reached; addresses always may. origins: of pages elsewhere that
    may ask from a browser.
    """

    keys: tuple[str, ...] = ()
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise ApiError for a request that is refused: 400, 401 or 403."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise ApiError(400, f"host: this server is not called {host!r}; --allow-host names more", code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and urlsplit(origin).netloc != host:
            raise ApiError(403, "origin: pages of other sites may not ask; --allow-origin names some", code="unknown_origin")
        if method == "OPTIONS" and origin in self.origins:
            return
        if self.keys and path not in OPEN and not self._has_key(headers.get("authorization", "")):
            message = "this server needs an API key: Authorization: Bearer KEY"
            raise ApiError(
                401, message, AUTHENTICATION, code="invalid_api_key", headers={"WWW-Authenticate": 'Basic realm="specdec"'}
            )

    def _is_ours(self, host: str) -> bool:
        """A page that points a name of its own at this address (DNS rebinding) comes with that name."""
        name = urlsplit(f"//{host}").hostname or "" if _is_host(host) else ""
        if name in LOCAL or name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_key(self, given: str) -> bool:
        scheme, _, secret = given.partition(" ")
        if scheme.lower() == "basic":
            secret = _password(secret)
        elif scheme.lower() != "bearer":
            return False
        digest = _digest(secret.strip())
        return sum(hmac.compare_digest(digest, _digest(key)) for key in self.keys) > 0


def _is_host(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").port is not None or True
    except ValueError:
        return False


def _digest(secret: str) -> bytes:
    """Of equal length for all secrets, so that comparing takes equally long."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _password(given: str) -> str:
    try:
        return base64.b64decode(given, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


class Guard:
    """ASGI middleware: checks access, and answers every error that reaches it as OpenAI's servers do."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def tracked(message: Any) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            self._access.check(scope["method"], scope["path"], Headers(scope=scope))
            await self._app(scope, receive, tracked)
        except ClientGone:
            return
        except ApiError as error:
            if not begun:
                await error_response(error)(scope, receive, send)
        except Exception as error:
            log(error)
            if not begun:
                await error_response(internal())(scope, receive, send)
