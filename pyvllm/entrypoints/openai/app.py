"""The routes: `/health`, `/metrics`, `/offload`, `/v1/...`. HTTP only; answers come from Service."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pyvllm.entrypoints.openai.chat_answer import Json
from pyvllm.entrypoints.openai.fields import ApiError, bad_request
from pyvllm.entrypoints.openai.metrics import CONTENT_TYPE
from pyvllm.entrypoints.openai.serving import Service, Stream

MAX_BODY_BYTES = 16 * 2**20

#: What a path that needs a key starts with.
_GUARDED = ("/v1", "/offload")

_FLAGS = {"true": True, "1": True, "false": False, "0": False}

_KINDS = {404: "NotFoundError", 405: "MethodNotAllowedError"}


class RequireApiKey:
    """Lets a request to `/v1/...` or `/offload` pass if it bears one of the keys; `/health` needs none, as in vLLM."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection as ASGI has it."""
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED) and not self._is_allowed(scope["headers"]):
            error = ApiError(401, "AuthenticationError", "a valid API key is needed: Authorization: Bearer <key>")
            await _error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_allowed(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        scheme, _, key = dict(headers).get(b"authorization", b"").partition(b" ")
        given = _digest(key)
        # Equal lengths and no early end: the time tells nothing about a key.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def build_app(service: Service, api_keys: Sequence[str]) -> Starlette:
    """Build the application that serves one model; without keys it asks for none."""

    async def health(_: Request) -> Response:
        return Response(status_code=200)

    async def models(_: Request) -> Response:
        return JSONResponse(service.models())

    async def offload(request: Request) -> Response:
        given = request.query_params.get("names", "false")
        if given not in _FLAGS:
            raise bad_request(f"names must be one of {', '.join(_FLAGS)}, got {given!r:.80}", "names")
        return JSONResponse(await service.offload_report(with_names=_FLAGS[given]))

    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def completions(request: Request) -> Response:
        return await _answer(request, service.complete)

    async def chat(request: Request) -> Response:
        return await _answer(request, service.chat)

    async def embeddings(request: Request) -> Response:
        return await _answer(request, service.embed)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/offload", offload),
            Route("/v1/models", models),
            Route("/metrics", metrics),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
        ],
        middleware=[Middleware(RequireApiKey, keys=api_keys)] if api_keys else [],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_defect},
    )


class JsonAnswer(JSONResponse):
    """JSON in which a lone surrogate, which a request or a model's JSON may hold as an escape, becomes `?`."""

    def render(self, content: object) -> bytes:
        """Write the body."""
        return _written(content)


def _written(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


class EventStream(Response):
    """Sends an answer in parts, as server-sent events; ends when the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, watch: "asyncio.Task[None]") -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._stream = stream
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection as ASGI has it."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self._stream.events:
                await self._send(send, _written(part))
            await self._send(send, b"[DONE]", is_last=True)
        finally:
            self._watch.cancel()
            self._stream.close()

    async def _send(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": not is_last})


async def _answer(request: Request, serve: Callable[[bytes, asyncio.Event], Awaitable[Json | Stream]]) -> Response:
    body = await _read_body(request)
    gone = asyncio.Event()
    watch = asyncio.create_task(_watch(request, gone))
    try:
        answer = await serve(body, gone)
    except BaseException:
        watch.cancel()
        raise
    if isinstance(answer, Stream):
        return EventStream(answer, watch)
    watch.cancel()
    return JsonAnswer(answer)


async def _read_body(request: Request) -> bytes:
    """Read a JSON body of at most MAX_BODY_BYTES; what follows the limit is never held."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page in a browser can send other types to this address without being asked first.
        raise bad_request(f"Content-Type must be application/json, got {kind[:80]!r}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, "RequestEntityTooLargeError", f"the body may have at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def _watch(request: Request, gone: asyncio.Event) -> None:
    """Set the event when the client closes the connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _error_response(error: ApiError) -> Response:
    return JsonAnswer(error.body(), status_code=error.status)


async def _on_api_error(_: Request, error: Exception) -> Response:
    return _error_response(error)  # type: ignore[arg-type]


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code  # type: ignore[attr-defined]
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"  # type: ignore[attr-defined]
    return _error_response(ApiError(status, _KINDS.get(status, "BadRequestError"), message))


async def _on_defect(_: Request, error: Exception) -> Response:
    """Answer without details; the server's log has them."""
    return _error_response(ApiError(500, "InternalServerError", f"internal error ({type(error).__name__})"))
