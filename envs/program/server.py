"""The HTTP server that programs take for a model's."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gagpo.base.errors import MissingPackage
from gagpo.base.limits import LimitBody, OwnPagesOnly
from gagpo.base.origin import LOOPBACK
from gagpo.envs.program import anthropic, openai, responses
from gagpo.envs.program.episodes import Episode
from gagpo.envs.program.messages import ChatRequest, Completion, Json, Refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Handler = Callable[["Request"], Awaitable["Response"]]

LARGEST = 16 << 20  # bytes of a request
_REMEMBERED = 10_000  # keys of ended episodes


class Server:
    """Answers the requests of ``episodes``, by their keys. All but the first runs in the thread of a loop.

    Raises: MissingPackage without the extra ``gateway``.
    """

    def __init__(self) -> None:
        try:
            import starlette
            import uvicorn

            del starlette, uvicorn
        except ImportError as error:
            raise MissingPackage(f"programs need the extra gateway ({error}): pip install 'gagpo[gateway]'") from None
        self._episodes: dict[str, Episode] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def admit(self, episode: Episode) -> dict[str, str]:
        """Accept requests of the episode; returns the variables that a program finds it by."""
        self._episodes[episode.token] = episode
        return {
            "OPENAI_BASE_URL": f"{self.address}/v1",
            "OPENAI_API_KEY": episode.token,
            "ANTHROPIC_BASE_URL": self.address,
            "ANTHROPIC_API_KEY": episode.token,
            "GAGPO_REWARD_URL": f"{self.address}/reward",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def dismiss(self, episode: Episode) -> None:
        """Accept no more requests of the episode."""
        if self._episodes.pop(episode.token, None):
            self._over[episode.token] = None
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)

    async def serve(self) -> None:
        """Answer until this is cancelled."""
        import uvicorn
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        chats = {"chat/completions": openai, "responses": responses, "messages": anthropic}
        posts = {f"/v1/{place}": self._chat(protocol) for place, protocol in chats.items()} | {"/reward": self._reward}
        routes = [Route(place, _refusing(handler), methods=["POST"]) for place, handler in posts.items()]
        routes.append(Route("/v1/models", _refusing(self._models)))
        safe = [Middleware(OwnPagesOnly, hosts=LOOPBACK), Middleware(LimitBody, max_bytes=LARGEST)]
        app = Starlette(routes=routes, middleware=safe)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", timeout_keep_alive=60
        )
        with self._listener:
            await uvicorn.Server(config).serve(sockets=[self._listener])

    def _episode(self, request: Request) -> Episode:
        """The episode of the request's key. Raises: Refused."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if token in self._over:
            raise Refused(409, "the episode of this key is over")
        if token not in self._episodes:
            raise Refused(401, "no episode has this key: send the $OPENAI_API_KEY that the program was started with")
        return self._episodes[token]

    def _chat(self, protocol: ModuleType) -> Handler:
        from starlette.responses import JSONResponse, Response

        async def chat(request: Request) -> Response:
            episode = self._episode(request)
            asked: ChatRequest = protocol.read(await _body(request))
            found = await _completions(episode, asked, request)
            name = secrets.token_hex(8)
            if asked.stream:
                return Response(protocol.stream(asked, found, name), media_type="text/event-stream")
            return JSONResponse(protocol.answer(asked, found, name))

        return chat

    async def _models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._episode(request)
        model = {"id": "gagpo", "object": "model", "created": 0, "owned_by": "gagpo", "type": "model"}
        return JSONResponse({"object": "list", "data": [model], "has_more": False})

    async def _reward(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        episode = self._episode(request)
        episode.report(await _body(request))
        return JSONResponse({})


def _refusing(handler: Handler) -> Handler:
    """``handler``, with an error as OpenAI and Anthropic send it for a request that is refused."""
    from starlette.responses import JSONResponse

    async def handled(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as error:
            kind = "authentication_error" if error.status == 401 else "invalid_request_error"
            said = {"message": str(error), "type": kind, "param": None, "code": None}
            return JSONResponse({"type": "error", "error": said}, error.status, {"x-should-retry": "false"})

    return handled


async def _completions(episode: Episode, asked: ChatRequest, request: Request) -> list[Completion]:
    """The answers, a turn each; when the client hangs up, what is not sampled yet is withdrawn."""
    whole = asyncio.gather(*(episode.ask(asked, request.headers.get("x-state", "")) for _ in range(asked.choices)))
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            raise Refused(499, "the client hung up")
        return list(whole.result())
    finally:
        gone.cancel()
        whole.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> Json:
    """The JSON object of a request. Raises: Refused."""
    raw = await request.body()
    try:
        body: Any = json.loads(raw)
        if b"\\ud" in raw.lower():
            json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair cannot become tokens
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:100]!a}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body
