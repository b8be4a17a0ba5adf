"""/v1/completions and /v1/chat/completions: from a body to an answer."""

import secrets
from collections.abc import AsyncIterator
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response

from specdec.decoding.requests import Request as Asked
from specdec.serving.answer_format import AnswerFormat, ChatFormat, CompletionFormat, Wanted
from specdec.serving.api_error import invalid
from specdec.serving.asking import chat_requests, completion_requests
from specdec.serving.bodies import Body, ChatBody, CompletionBody, parsed
from specdec.serving.exchange import Exchange, choice_of
from specdec.serving.http_answer import EventStream, json_response, while_connected
from specdec.serving.http_body import read_json
from specdec.serving.service import Service
from specdec.serving.token_words import TokenWords
from specdec.serving.usage import Usage

VERSION = version("specdec")


async def chat(service: Service, request: Request, control_tokens: str) -> Response:
    """Answer a conversation. Raises ApiError, and ClientGone."""
    body = parsed(ChatBody, await read_json(request, service.limits))
    model = service.model(body.model)
    requests = chat_requests(body, service.decoders[model].sampling, service.limits, control_tokens)
    wanted = _wanted(body, logprobs=bool(body.logprobs))
    answer = ChatFormat(f"chatcmpl-{secrets.token_hex(12)}", model, VERSION, _words(service, model, body), wanted)
    return await _answered(service, request, body, answer, await _submit(service, model, requests, body))


async def complete(service: Service, request: Request) -> Response:
    """Continue one prompt or several. Raises ApiError, and ClientGone."""
    body = parsed(CompletionBody, await read_json(request, service.limits))
    model = service.model(body.model)
    requests = completion_requests(body, service.decoders[model].sampling, service.limits)
    wanted = _wanted(body, logprobs=body.logprobs is not None)
    answer = CompletionFormat(f"cmpl-{secrets.token_hex(12)}", model, VERSION, _words(service, model, body), wanted)
    return await _answered(service, request, body, answer, await _submit(service, model, requests, body))


def _wanted(body: Body, *, logprobs: bool) -> Wanted:
    options = body.stream_options
    if options is not None and not body.stream:
        raise invalid("stream_options: needs stream: true", "stream_options", "invalid_value")
    if body.return_draft_sources and not body.stream:
        raise invalid("return_draft_sources: needs stream: true", "return_draft_sources", "invalid_value")
    return Wanted(
        logprobs=logprobs,
        token_ids=bool(body.return_token_ids),
        draft_sources=bool(body.return_draft_sources),
        usage=options is not None and options.include_usage,
        running_usage=options is not None and options.include_usage and options.continuous_usage_stats,
    )


def _words(service: Service, model: str, body: Body) -> TokenWords:
    return TokenWords(service.decoders[model].target.codec, by_id=bool(body.return_tokens_as_token_ids))


async def _submit(service: Service, model: str, requests: list[Asked], body: Body) -> Exchange:
    return service.submit(model, await service.ready(model, requests), streams=bool(body.stream))


async def _answered(service: Service, request: Request, body: Body, answer: AnswerFormat, exchange: Exchange) -> Response:
    if body.stream:
        events = _events(exchange, answer)
        return EventStream(events, lambda: service.cancel(exchange), service.limits.send_seconds)
    try:
        generations = await while_connected(request.receive, exchange.answers())
    finally:
        service.cancel(exchange)
    return json_response(answer.whole(generations, Usage.of(_prompt_tokens(exchange), generations)))


def _prompt_tokens(exchange: Exchange) -> int:
    return sum(len(ticket.request.prompt) for ticket in exchange.tickets)


async def _events(exchange: Exchange, answer: AnswerFormat) -> AsyncIterator[bytes]:
    """The events of a stream. Raises ApiError where an answer fails."""
    usage = Usage(_prompt_tokens(exchange))
    async for news in exchange.updates():
        events = []
        for update in news:
            if isinstance(update.news, BaseException):
                continue
            usage.add_tokens(len(update.news.tokens))
            if update.news.record is not None:
                usage.add_records([update.news.record])
            events.append(answer.chunks(choice_of(update), update.news, usage))
        if any(events):
            yield b"".join(events)
    yield answer.last(usage)
