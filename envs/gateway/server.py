"""An HTTP server that clients take for a model's.

Nothing that a client sends may end the run: every request gets an answer, with status 400 for a fault of its own and
500 for one of the gateway.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gagpo.base import descriptors
from gagpo.base.limits import OwnPagesOnly
from gagpo.base.origin import LOOPBACK
from gagpo.envs.gateway.bodies import BodyMemory, discard_body, parse_object, read_body, require_size
from gagpo.envs.gateway.connections import Connections, GatewayConfig
from gagpo.envs.gateway.messages import ChatRequest, Completion, GatewayError, unexpected
from gagpo.envs.gateway.protocols import PROTOCOLS, ChatProtocol

READERS = 2  # threads that read long requests
SHORT = 32 << 10  # bytes of a body that is parsed within the event loop, which is faster than a switch of threads
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_MODEL = {
    "id": "gagpo",
    "object": "model",
    "created": 0,
    "owned_by": "gagpo",
    "type": "model",
    "display_name": "gagpo",
    "created_at": "1970-01-01T00:00:00Z",
}


class GatewayClient(Protocol):
    """Who sends a request: the program of an episode, or a client of a served model.

    token: its key.
    """

    token: str

    def require_running(self) -> None:
        """Raises: GatewayError if its requests are not answered any more."""

    def ask(self, request: ChatRequest, state_key: str) -> asyncio.Future[Completion]:
        """Queue a request, which may be cancelled. Raises: GatewayError."""

    def note_rejection(self, reason: str) -> None:
        """Count a request that was answered with an error."""


Answer = Callable[[GatewayClient, Request], Awaitable[Response]]


class GatewayServer:
    """Answers the requests of clients. A subclass says who they are, and may answer at more addresses.

    All but the constructor runs in the thread of a loop.

    host: name or address at which it listens. Other names of this machine are accepted if it is no loopback address.
    port: 0 takes a free one.
    model: the name of the model in answers to ``/v1/models``.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, model: str = "gagpo") -> None:
        self._listener = socket.create_server((host, port), backlog=1024)
        self.address = f"http://{host}:{self._listener.getsockname()[1]}"
        self._hosts = LOOPBACK if host in LOOPBACK else None
        self._listed_model = {**_MODEL, "id": model, "display_name": model}
        self._body_memory = BodyMemory()
        self._connections: Connections | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._reading: dict[str, asyncio.Lock] = {}  # by key: a program occupies at most one of the readers

    async def serve(self) -> None:
        """Answer until this is cancelled."""
        self._connections = Connections(descriptors.raise_limit())
        self._readers = ThreadPoolExecutor(READERS, "gateway-reader")
        asyncio.get_running_loop().set_exception_handler(self._connections.handle)
        config = GatewayConfig(self._app(), self._connections)
        sweeping = asyncio.ensure_future(self._connections.sweep_forever())
        try:
            with self._listener:
                await uvicorn.Server(config).serve(sockets=[self._listener])
        finally:
            sweeping.cancel()
            # A reader ends by itself within seconds, since bodies are bounded; its result is not needed any more.
            self._readers.shutdown(wait=False, cancel_futures=True)

    def _answers(self) -> dict[tuple[str, str], Answer]:
        """What is answered, by method and path."""
        answers: dict[tuple[str, str], Answer] = {
            ("POST", f"/v1/{path}"): partial(self._chat, protocol) for path, protocol in PROTOCOLS.items()
        }
        answers["GET", "/v1/models"] = self._models
        answers["GET", "/v1/models/{model:path}"] = self._model
        return answers

    def _app(self) -> Starlette:
        answers = self._answers()
        routes = [Route(path, self._route(answer), methods=[method]) for (method, path), answer in answers.items()]
        paths = [f"{method} {path.replace('{model:path}', 'MODEL')}" for method, path in answers]
        elsewhere = self._route(partial(_not_found, paths))
        routes.append(Route("/{path:path}", elsewhere, methods=_METHODS))
        safe = [Middleware(OwnPagesOnly, hosts=self._hosts)]
        app = Starlette(routes=routes, middleware=safe, exception_handlers={HTTPException: _http_error})
        app.router.redirect_slashes = False  # a redirection has no JSON
        return app

    def _route(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """A handler that finds the request's client, and turns every exception into an answer.

        The key is checked first: without one, nothing of the body is kept.
        """

        async def handled(request: Request) -> Response:
            client = None
            try:
                require_size(request)
                client = self._client(request)
                self._claim(request, client)
                return await answer(client, request)
            except ClientDisconnect:
                return _error_response(GatewayError(499, "the client hung up"), stays_open=False)
            except GatewayError as error:
                failure = error
            except RecursionError:  # in spite of the limit of a body's depth
                failure = GatewayError(400, "the request is nested too deeply")
            except Exception as error:
                failure = unexpected(error)
            # After the end of the episode, and without a client, an error is not a fault of the program.
            if client is not None and failure.status not in (409, 499):
                client.note_rejection(str(failure))
            return _error_response(failure, stays_open=await discard_body(request))

        return handled

    @property
    def num_clients(self) -> int:
        """How many clients share the connections."""
        return 1

    def _client(self, request: Request) -> GatewayClient:
        """The sender of a request. Raises: GatewayError for a wrong key."""
        raise NotImplementedError

    def _claim(self, request: Request, client: GatewayClient) -> None:
        address = request.client
        if self._connections is not None and address is not None:
            self._connections.claim((address.host, address.port), client.token, self.num_clients)

    async def _chat(self, protocol: ChatProtocol, client: GatewayClient, request: Request) -> Response:
        with self._body_memory.reserve(client.token) as reservation:
            body = await read_body(request, reservation)
            client.require_running()
            chat = await self._read(protocol, client, body)
            del body  # the request contains its text; both together would double the memory until the answer
            completions = await _completions(client, chat, request)
        name = secrets.token_hex(8)
        if chat.stream:
            return Response(protocol.stream(chat, completions, name), media_type="text/event-stream")
        return JSONResponse(protocol.answer(chat, completions, name))

    async def _read(self, protocol: ChatProtocol, client: GatewayClient, body: bytearray) -> ChatRequest:
        """The request in a body. A long one is parsed in a thread, so that it does not delay the other episodes."""
        if len(body) <= SHORT or self._readers is None:
            return _prepare(protocol, body)
        lock = self._reading.setdefault(client.token, asyncio.Lock())
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._readers, _prepare, protocol, body)

    async def _models(self, client: GatewayClient, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._listed_model], "has_more": False})

    async def _model(self, client: GatewayClient, request: Request) -> Response:
        """Every name is a name of the model, as in requests for answers."""
        name = request.path_params["model"]
        return JSONResponse({**_MODEL, "id": name, "display_name": name})


def key_of(request: Request) -> str:
    """The key of a request, as OpenAI's and Anthropic's clients send it; '' without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


async def _not_found(places: list[str], client: GatewayClient, request: Request) -> Response:
    route = f"{request.method} {request.url.path[:80]}"
    raise GatewayError(404, f"{route} is not supported; the gateway answers {', '.join(places)}")


def _error_response(failure: GatewayError, stays_open: bool) -> JSONResponse:
    """An error in the form of both OpenAI and Anthropic.

    Their clients retry several statuses by default, which would only repeat the fault: a header tells them not to.
    """
    error_type = _KINDS.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    error = {"message": str(failure), "type": error_type, "param": None, "code": None}
    headers = {"x-should-retry": "false"}
    if not stays_open:
        headers["connection"] = "close"
    return JSONResponse({"type": "error", "error": error}, failure.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, such as an unknown method, in the same form."""
    assert isinstance(error, HTTPException)
    return _error_response(GatewayError(error.status_code, str(error.detail)), stays_open=False)


def _prepare(protocol: ChatProtocol, body: bytearray) -> ChatRequest:
    """The request in a body. Computes its cached properties, which take time for a long one, in this thread."""
    request = protocol.read(parse_object(body))
    _ = request.digests, request.functions, request.observation
    return request


async def _completions(client: GatewayClient, chat: ChatRequest, request: Request) -> list[Completion]:
    """The answers, a turn each.

    Waits for each answer or for the client to hang up. Then the requests that are not sampled yet are withdrawn: a
    cancelled future leaves the episode's queue.
    """
    answers = [client.ask(chat, request.headers.get("x-state", "")) for _ in range(chat.n)]
    hang_up = asyncio.ensure_future(_hung_up(request))
    try:
        for answer in answers:
            await asyncio.wait((answer, hang_up), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise GatewayError(499, "the client hung up")
        return [answer.result() for answer in answers]
    finally:
        hang_up.cancel()
        for answer in answers:
            answer.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
