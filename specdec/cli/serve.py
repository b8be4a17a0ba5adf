"""`serve`: a strategy behind an HTTP server with OpenAI's interface."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.cli.generate_options import CertificateFile
from specdec.cli.terminal import DEBUG, Settings, Strategy, TargetModel, TrustRemoteCode, guarded, print_notes
from specdec.compose import build, resolve
from specdec.config.catalog import load_catalog
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.files.yaml_document import read_value
from specdec.trace.recorder import drafter_names

EXTRA = "serve: needs fastapi, uvicorn and prometheus_client: pip install 'specdec[serve]'"

Host = Annotated[str, typer.Option(help="Address to listen on. Any but this machine's own needs an API key or --insecure.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")]
KeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", metavar="FILE", help="API keys, one a line; SPECDEC_API_KEY may hold one.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Serve whoever reaches the address, without a key.")]
AllowHost = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A name under which clients may reach the server. Repeatable.")
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="A site whose pages may ask, such as https://example.org. Repeatable."),
]
ServedName = Annotated[str | None, typer.Option(metavar="NAME", help="The model's name. [default: the strategy's]")]
MaxRunning = Annotated[int | None, typer.Option(min=1, help="Sequences decoded at once. [default: 8]")]
Limit = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Another limit, such as max_waiting=64; docs/serving.md lists them. Repeatable."),
]
ControlTokens = Annotated[
    str,
    typer.Option(metavar="allow|refuse|escape", help="Special tokens in a chat's messages: kept, refused, or read as text."),
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log method, path and status of every request.")]
Plain = Annotated[bool, typer.Option("--with-plain", help="Serve plain decoding too, as model 'plain', to compare.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", help="Serve a strategy over HTTP with OpenAI's interface.")(serve)


@guarded
def serve(
    strategy: Strategy,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: KeyFile = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    served_model_name: ServedName = None,
    max_running: MaxRunning = None,
    limit: Limit = None,
    control_tokens: ControlTokens = "escape",
    with_plain: Plain = False,
    access_log: AccessLog = False,
    target: TargetModel = None,
    trust: TrustRemoteCode = None,
    settings: Settings = None,
    certificate: CertificateFile = None,
) -> None:
    """Load a strategy and answer requests until a signal ends the server."""
    try:
        from specdec.serving.limits import limits_of
        from specdec.serving.running import Address, ServerOptions, listening, run, server
    except ImportError as error:
        raise SpecError(EXTRA) from error
    address = Address(host, port, api_key_file, insecure, tuple(allow_host or ()), tuple(allow_origin or ()))
    given = _limits(limit) | ({} if max_running is None else {"max_running": max_running})
    limits, access = limits_of(given), address.access()
    if control_tokens not in ("allow", "refuse", "escape"):
        raise SpecError(f"--control-tokens: got '{control_tokens}'; expected allow, refuse or escape")
    with listening(address) as place:
        catalog = load_catalog(trust_remote_code=trust)
        resolved = resolve(strategy, catalog, settings=settings or (), target=target)
        decoder, name = build(resolved, catalog, certificate=certificate), served_model_name or resolved.spec.name
        decoders = {name: decoder} | (_plain(decoder, catalog) if with_plain else {})
        options = ServerOptions({name: drafter_names(resolved.plain()["drafter"])}, control_tokens, access_log)
        made = server(decoders, address, limits, access, options)
        _announce(list(decoders), host, place.getsockname()[1], keys=bool(access.keys))
        run(made, place)


def _log_to_stderr() -> None:
    """What fails, by type and place; in full, which may quote a prompt, only where debugging was asked for."""
    log, handler = logging.getLogger("specdec.serving"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:     %(message)s"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.DEBUG if os.environ.get(DEBUG) else logging.INFO)


def _limits(given: list[str] | None) -> dict[str, Any]:
    limits = {}
    for setting in given or ():
        name, equals, text = setting.partition("=")
        if not equals:
            raise SpecError(f"--limit {setting}: expected KEY=VALUE, such as max_waiting=64")
        limits[name.strip()] = read_value(text, f"--limit {setting}")
    return limits


def _plain(decoder: Decoder, catalog: Any) -> dict[str, Decoder]:
    """Plain decoding with the same target and sampling."""
    plain = resolve("plain", catalog, settings=())
    return {"plain": build(plain, catalog, target=decoder.target).replace(sampling=decoder.sampling)}


def _announce(names: list[str], host: str, port: int, *, keys: bool) -> None:
    shown = f"[{host}]" if ":" in host else host
    key = "an API key is needed" if keys else "no API key is needed"
    _log_to_stderr()
    print_notes([f"{', '.join(names)}: http://{shown}:{port}/v1, page http://{shown}:{port}/ ({key}); Ctrl+C ends it"])
