"""The HTTP server that programs take for a model's.

Nothing that a program sends may end the run: every request gets an answer, with status 400 for a fault of its own and
500 for one of the gateway.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

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
from gagpo.envs.program import anthropic, openai, responses
from gagpo.envs.program.bodies import HeldBytes, discard_body, parse_object, read_body, require_size
from gagpo.envs.program.connections import Connections, GatewayConfig
from gagpo.envs.program.episodes import Episode
from gagpo.envs.program.messages import ChatRequest, Completion, RequestRefused, unexpected

PROTOCOLS = {"chat/completions": openai, "responses": responses, "messages": anthropic}
READERS = 2  # threads that read long requests
SHORT = 32 << 10  # bytes of a body that is read within the event loop, which takes less than a switch of threads
_REMEMBERED = 10_000  # keys of ended episodes
_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
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

Answer = Callable[[Episode, Request], Awaitable[Response]]


class GatewayServer:
    """Answers the requests of episodes, by their keys. All but the first runs in the thread of a loop."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held = HeldBytes()
        self._connections: Connections | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._reading: dict[str, asyncio.Lock] = {}  # by key: a program has one of the readers at a time

    def admit(self, episode: Episode) -> dict[str, str]:
        """Accept requests of the episode; returns the variables with which a program finds the server."""
        self._episodes[episode.token] = episode
        urls = {"OPENAI_BASE_URL": f"{self.address}/v1", "ANTHROPIC_BASE_URL": self.address}
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), episode.token)
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        return {**urls, **keys, **direct, "GAGPO_REWARD_URL": f"{self.address}/reward"}

    def dismiss(self, episode: Episode) -> None:
        """Accept no more requests of the episode."""
        self._reading.pop(episode.token, None)
        if self._episodes.pop(episode.token, None):
            self._over[episode.token] = None
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)

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
            # A reader ends by itself within seconds, since bodies are bounded; nobody waits for what it reads.
            self._readers.shutdown(wait=False, cancel_futures=True)

    def _app(self) -> Starlette:
        answers: dict[tuple[str, str], Answer] = {
            ("POST", f"/v1/{place}"): partial(self._chat, protocol) for place, protocol in PROTOCOLS.items()
        }
        answers["POST", "/reward"] = self._reward
        answers["GET", "/v1/models"] = self._models
        answers["GET", "/v1/models/{model:path}"] = self._model
        routes = [Route(place, self._route(answer), methods=[method]) for (method, place), answer in answers.items()]
        places = [f"{method} {place.replace('{model:path}', 'MODEL')}" for method, place in answers]
        elsewhere = self._route(partial(_not_found, places))
        routes.append(Route("/{path:path}", elsewhere, methods=_METHODS))
        safe = [Middleware(OwnPagesOnly, hosts=LOOPBACK)]
        app = Starlette(routes=routes, middleware=safe, exception_handlers={HTTPException: _http_error})
        app.router.redirect_slashes = False  # a redirection has no JSON
        return app

    def _route(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """A handler that finds the request's episode, and turns every exception into an answer.

        The key is checked first: without one, nothing of the body is kept.
        """

        async def handled(request: Request) -> Response:
            episode = None
            try:
                require_size(request)
                episode = self._episode(request)
                self._claim(request, episode)
                return await answer(episode, request)
            except ClientDisconnect:
                return _refused(RequestRefused(499, "the client hung up"), stays_open=False)
            except RequestRefused as error:
                refusal = error
            except RecursionError:  # of a body, in spite of the limit of its depth
                refusal = RequestRefused(400, "the request is nested too deeply")
            except Exception as error:
                refusal = unexpected(error)
            if episode is not None and refusal.status not in (409, 499):
                episode.note_refusal(str(refusal))
            return _refused(refusal, stays_open=await discard_body(request))

        return handled

    def _episode(self, request: Request) -> Episode:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if token in self._over:
            raise RequestRefused(409, "the episode of this key is over")
        if token not in self._episodes:
            raise RequestRefused(401, "no episode has this key: send the $OPENAI_API_KEY that the program finds")
        return self._episodes[token]

    def _claim(self, request: Request, episode: Episode) -> None:
        client = request.client
        if self._connections is not None and client is not None:
            self._connections.claim((client.host, client.port), episode.token, len(self._episodes))

    async def _chat(self, protocol: ModuleType, episode: Episode, request: Request) -> Response:
        with self._held.hold(episode.token) as held:
            body = await read_body(request, held)
            episode.require_running()
            chat: ChatRequest = await self._read(protocol, episode, body)
            del body  # its text is in the request, until that is answered
            completions = await _completions(episode, chat, request)
        name = secrets.token_hex(8)
        if chat.stream:
            return Response(protocol.stream(chat, completions, name), media_type="text/event-stream")
        return JSONResponse(protocol.answer(chat, completions, name))

    async def _read(self, protocol: ModuleType, episode: Episode, body: bytearray) -> ChatRequest:
        """The request in a body; a long one is read in a thread, so that the other episodes go on."""
        if len(body) <= SHORT or self._readers is None:
            return _prepared(protocol, body)
        lock = self._reading.setdefault(episode.token, asyncio.Lock())
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._readers, _prepared, protocol, body)

    async def _models(self, episode: Episode, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_MODEL], "has_more": False})

    async def _model(self, episode: Episode, request: Request) -> Response:
        """Any name is one of the model, as in requests for answers."""
        name = request.path_params["model"]
        return JSONResponse({**_MODEL, "id": name, "display_name": name})

    async def _reward(self, episode: Episode, request: Request) -> Response:
        with self._held.hold(episode.token) as held:
            body = parse_object(await read_body(request, held))
        episode.require_running()
        episode.report(body)
        return JSONResponse({})


async def _not_found(places: list[str], episode: Episode, request: Request) -> Response:
    place = f"{request.method} {request.url.path[:80]}"
    raise RequestRefused(404, f"{place} is not supported; the gateway answers {', '.join(places)}")


def _refused(refusal: RequestRefused, stays_open: bool) -> JSONResponse:
    """An error as OpenAI and Anthropic write it. Their clients do not try again."""
    kind = _KINDS.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    error = {"message": str(refusal), "type": kind, "param": None, "code": None}
    headers = {"x-should-retry": "false", **({} if stays_open else {"connection": "close"})}
    return JSONResponse({"type": "error", "error": error}, refusal.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, such as an unknown method, in the same form."""
    assert isinstance(error, HTTPException)
    return _refused(RequestRefused(error.status_code, str(error.detail)), stays_open=False)


def _prepared(protocol: ModuleType, body: bytearray) -> ChatRequest:
    """The request in a body, with everything that takes time."""
    request: ChatRequest = protocol.read(parse_object(body))
    _ = request.digests, request.functions, request.observation  # cached properties
    return request


async def _completions(episode: Episode, chat: ChatRequest, request: Request) -> list[Completion]:
    """The answers, a turn each; when the client hangs up, what is not sampled yet is withdrawn."""
    answers = [episode.ask(chat, request.headers.get("x-state", "")) for _ in range(chat.n)]
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        for answer in answers:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RequestRefused(499, "the client hung up")
        return [answer.result() for answer in answers]
    finally:
        gone.cancel()
        for answer in answers:
            answer.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
