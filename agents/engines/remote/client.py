"""One vLLM server, asked over HTTP: every wait has a deadline, and no answer is read beyond what an honest one is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import httpx2

from gagpo.agents.engines.base import Request, Response, Sampling
from gagpo.agents.engines.remote.wire import (
    GENERATE,
    MalformedAnswer,
    ReplicaError,
    ReplicaTimeout,
    ReplicaUnreachable,
    RequestRefused,
    Terms,
    answer_limit,
    parse,
    question,
)
from gagpo.envs.errors import first_line

CONTROL_BYTES = 1 << 20  # most that an answer to anything but a request for tokens may take
CONNECT_SECONDS = 10.0


class Client:
    """A server at ``url``; use it in one event loop.

    deadline: seconds that a response may take, waiting in the server's queue included.
    """

    def __init__(self, url: str, deadline: float):
        self.url = url.rstrip("/")
        self.deadline = deadline
        # No limit on connections: the rollout says how many episodes are under way, and a request that waits here for a
        # connection would be one that the server cannot batch.
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            trust_env=False,  # a proxy of the environment is not meant for these servers
            follow_redirects=False,
        )

    async def generate(self, request: Request, sampling: Sampling, terms: Terms) -> Response:
        """One response. Raises :class:`ReplicaError`, and :class:`RequestRefused` where the request itself is wrong."""
        body = question(request, sampling, terms)
        answer = await self._ask("POST", GENERATE, body, self.deadline, answer_limit(sampling))
        return parse(answer, sampling, terms)

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
        try:
            async with asyncio.timeout(deadline):
                status, answer = await self._exchange(method, path, body, most)
        except TimeoutError:
            raise ReplicaTimeout(f"{self.url}{path} did not answer within {deadline:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            raise ReplicaUnreachable(f"{self.url}{path} cannot be reached: {first_line(error)}") from None
        if status == 200:
            return answer
        said = answer[:300].decode(errors="replace").strip()
        if status in (400, 413, 422):
            raise RequestRefused(f"{self.url}{path} refuses the request ({status}): {said}")
        if status in (401, 403, 404, 405):
            raise RequestRefused(
                f"{self.url}{path} is not to be used ({status}): {said}; start the server with "
                "`python -m gagpo.agents.engines.remote.server MODEL`, which switches on what is needed"
            )
        raise ReplicaError(f"{self.url}{path} failed ({status}): {said}")

    async def _exchange(self, method: str, path: str, body: bytes | None, most: int) -> tuple[int, bytes]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with self._http.stream(method, path, content=body, headers=headers) as response:
            answer = bytearray()
            async for chunk in response.aiter_raw():  # no more is held than an honest answer has
                answer += chunk
                if len(answer) > most:
                    raise MalformedAnswer(f"{self.url}{path} answered with more than {most} bytes")
            return response.status_code, bytes(answer)
