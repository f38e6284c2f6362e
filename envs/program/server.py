"""The HTTP server that programs take for a model's."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gagpo.base.limits import LimitBody, OwnPagesOnly
from gagpo.base.origin import LOOPBACK
from gagpo.envs.program import anthropic, openai, responses
from gagpo.envs.program.episodes import Episode
from gagpo.envs.program.messages import ChatRequest, Completion, Json, RequestRefused

PROTOCOLS = {"chat/completions": openai, "responses": responses, "messages": anthropic}
LARGEST = 16 << 20  # bytes of a request
_REMEMBERED = 10_000  # keys of ended episodes
_MODEL = {"id": "gagpo", "object": "model", "created": 0, "owned_by": "gagpo", "type": "model"}


class GatewayServer:
    """Answers the requests of episodes, by their keys. All but the first runs in the thread of a loop."""

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def admit(self, episode: Episode) -> dict[str, str]:
        """Accept requests of the episode; returns the variables with which a program finds the server."""
        self._episodes[episode.token] = episode
        urls = {"OPENAI_BASE_URL": f"{self.address}/v1", "ANTHROPIC_BASE_URL": self.address}
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), episode.token)
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        return {**urls, **keys, **direct, "GAGPO_REWARD_URL": f"{self.address}/reward"}

    def dismiss(self, episode: Episode) -> None:
        """Accept no more requests of the episode."""
        if self._episodes.pop(episode.token, None):
            self._over[episode.token] = None
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)

    async def serve(self) -> None:
        """Answer until this is cancelled."""
        handlers = {f"/v1/{place}": partial(self._chat, protocol) for place, protocol in PROTOCOLS.items()}
        routes = [Route(place, self._route(one), methods=["POST"]) for place, one in handlers.items()]
        routes.append(Route("/reward", self._route(self._reward), methods=["POST"]))
        routes.append(Route("/v1/models", self._route(self._models)))
        safe = [Middleware(OwnPagesOnly, hosts=LOOPBACK), Middleware(LimitBody, max_bytes=LARGEST)]
        app = Starlette(routes=routes, middleware=safe)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", timeout_keep_alive=60
        )
        with self._listener:
            await uvicorn.Server(config).serve(sockets=[self._listener])

    def _route(
        self, answer: Callable[[Episode, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler that finds the request's episode, and refuses as OpenAI and Anthropic do."""

        async def handled(request: Request) -> Response:
            try:
                return await answer(self._episode(request), request)
            except (RequestRefused, RecursionError) as error:  # the latter for a body that is nested too deeply
                status = error.status if isinstance(error, RequestRefused) else 400
                kind = "authentication_error" if status == 401 else "invalid_request_error"
                said = {"message": str(error), "type": kind, "param": None, "code": None}
                return JSONResponse({"type": "error", "error": said}, status, {"x-should-retry": "false"})

        return handled

    def _episode(self, request: Request) -> Episode:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if token in self._over:
            raise RequestRefused(409, "the episode of this key is over")
        if token not in self._episodes:
            raise RequestRefused(401, "no episode has this key: send the $OPENAI_API_KEY that the program finds")
        return self._episodes[token]

    async def _chat(self, protocol: ModuleType, episode: Episode, request: Request) -> Response:
        asked: ChatRequest = protocol.read(await _body(request))
        found, name = await _completions(episode, asked, request), secrets.token_hex(8)
        if asked.stream:
            return Response(protocol.stream(asked, found, name), media_type="text/event-stream")
        return JSONResponse(protocol.answer(asked, found, name))

    async def _models(self, episode: Episode, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_MODEL], "has_more": False})

    async def _reward(self, episode: Episode, request: Request) -> Response:
        body = await _body(request)
        episode.require_running()
        episode.report(body)
        return JSONResponse({})


async def _completions(episode: Episode, asked: ChatRequest, request: Request) -> list[Completion]:
    """The answers, a turn each; when the client hangs up, what is not sampled yet is withdrawn."""
    answers = [episode.ask(asked, request.headers.get("x-state", "")) for _ in range(asked.n)]
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


async def _body(request: Request) -> Json:
    """The JSON object of a request. Raises: RequestRefused."""
    raw = await request.body()
    try:
        body = json.loads(raw)
        if b"\\ud" in raw.lower():
            json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair cannot become tokens
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"the body is not JSON: {str(error)[:100]!a}") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return body
