"""One server, asked over HTTP: every wait has a deadline, and no answer is read beyond what an honest one is."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.remote.kinds.base import ServerKind
from gagpo.agents.engines.remote.wire import (
    MalformedAnswer,
    ReplicaError,
    ReplicaTimeout,
    ReplicaUnreachable,
    RequestRefused,
    Terms,
    UnsuitableServer,
    answer_limit,
)
from gagpo.envs.remote.exchange import DeadlinePassed, ExchangeFailed, OversizedReply, Reply, exchange, open_http

CONTROL_BYTES = 1 << 20  # most that an answer to anything but a request for tokens may take


class Client:
    """A server of ``kind`` at ``url``; use it in one event loop.

    deadline: seconds that a response may take, waiting in the server's queue included.
    """

    def __init__(self, url: str, deadline: float, kind: ServerKind):
        self.url = url.rstrip("/")
        self.deadline, self.kind = deadline, kind
        self._http = open_http(proxies=False)  # a proxy of the environment is not meant for these servers

    async def generate(self, request: Request, sampling: Sampling, terms: Terms) -> Response:
        """One response. Raises :class:`ReplicaError`, and :class:`RequestRefused` for a request that it calls wrong."""
        body = self.kind.question(request, sampling, terms)
        most = sampling.limit(request)
        answer = await self._ask("POST", self.kind.generating, body, self.deadline, answer_limit(most))
        return self.kind.parse(answer, most, terms)

    async def healthy(self, deadline: float) -> None:
        """Return when the server says it is well, else raise :class:`ReplicaError`."""
        await self._ask("GET", "/health", None, deadline, CONTROL_BYTES)

    async def order(self, path: str, body: Mapping[str, object] | None, deadline: float) -> None:
        """Have something done that answers with nothing of interest: the calls of weight transfer, sleep and wake."""
        data = None if body is None else json.dumps(body).encode()
        await self._ask("POST", path, data, deadline, CONTROL_BYTES)

    async def look_up(self, path: str, deadline: float) -> dict[str, object]:
        """A JSON object that the server holds."""
        answer = await self._ask("GET", path, None, deadline, CONTROL_BYTES)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise MalformedAnswer(f"{self.url}{path} answered with no JSON object")
        return found

    async def close(self) -> None:
        """Close all connections; what is under way at the server is aborted there."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: bytes | None, deadline: float, most: int) -> bytes:
        reply = await self._exchange(method, path, body, deadline, most)
        if reply.status == 200:
            return reply.body
        if reply.status in (400, 413, 422):
            raise RequestRefused(f"{self.url}{path} refuses the request ({reply.status}): {reply.said}")
        if reply.status in (401, 403, 404, 405):
            raise UnsuitableServer(
                f"{self.url}{path} is not to be used ({reply.status}): {reply.said}; start the server with "
                f"{self.kind.starting}"
            )
        raise ReplicaError(f"{self.url}{path} failed ({reply.status}): {reply.said}")

    async def _exchange(self, method: str, path: str, body: bytes | None, deadline: float, most: int) -> Reply:
        try:
            return await exchange(self._http, method, self.url + path, body, deadline=deadline, most=most)
        except DeadlinePassed as error:
            raise ReplicaTimeout(str(error)) from None
        except OversizedReply as error:
            raise MalformedAnswer(str(error)) from None
        except ExchangeFailed as error:
            raise ReplicaUnreachable(str(error)) from None
