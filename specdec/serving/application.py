"""The endpoints put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from specdec.serving.api_error import ApiError, shutting_down
from specdec.serving.completing import chat, complete
from specdec.serving.guard import Access, Guard
from specdec.serving.http_answer import error_response, json_response
from specdec.serving.page import FILES, page_file
from specdec.serving.service import Service

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def application(service: Service, access: Access, *, control_tokens: str = "escape") -> FastAPI:
    """The ASGI application of a service. control_tokens: what becomes of those that a chat's message contains."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_answers(app, service, control_tokens)
    _add_facts(app, service)
    _add_page(app)
    app.exception_handler(ApiError)(_told)
    app.exception_handler(HTTPException)(_refused)
    if access.origins:
        headers = ["Authorization", "Content-Type"]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(access.origins), allow_headers=headers, allow_methods=["GET", "POST"]
        )
    app.add_middleware(Guard, access=access)
    return app


def _add_answers(app: FastAPI, service: Service, control_tokens: str) -> None:
    async def chat_completions(request: Request) -> Response:
        return await chat(service, request, control_tokens)

    async def completions(request: Request) -> Response:
        return await complete(service, request)

    # As plain routes: what FastAPI does for a parameter of a body is done by `bodies`, in our words and within limits.
    app.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
    app.add_route("/v1/completions", completions, methods=["POST"])


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        return json_response({"object": "list", "data": [_card(service, name) for name in service.decoders]})

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        return json_response(_card(service, service.model(name)))

    @app.get("/health", response_model=None)
    async def health() -> Response:
        if not service.engine.is_alive:
            return error_response(shutting_down())
        return json_response({"status": "ok"})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=PROMETHEUS)


def _add_page(app: FastAPI) -> None:
    async def file(request: Request) -> Response:
        return page_file(request.url.path)

    for path in FILES:
        app.add_route(path, file, methods=["GET"])


def _card(service: Service, name: str) -> dict[str, Any]:
    decoder = service.decoders[name]
    facts = decoder.target.facts
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "specdec",
        "root": facts.description.rstrip("/").rpartition("/")[2],
        "parent": None,
        "max_model_len": facts.max_positions,
        "drafters": list(service.drafters.get(name, (decoder.drafter.name,))),
        "verifier": decoder.verifier.name,
        "guarantee": decoder.verifier.declaration.guarantee.value,
    }


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})))
