"""ASGI middleware: limits the size of a request and rejects requests from other sites' pages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from gagpo.base.origin import SAFETY_HEADERS, refusal

Message = MutableMapping[str, Any]
"""An ASGI message or scope."""

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

App = Callable[[Message, Receive, Send], Awaitable[None]]

_SAFETY = [(name.lower().encode(), value.encode()) for name, value in SAFETY_HEADERS.items()]


class OwnPagesOnly:
    """Answers 403 to requests for host names outside ``hosts`` (None: any) and from other sites' pages.

    Adds :data:`gagpo.base.origin.SAFETY_HEADERS` to every other answer.
    """

    def __init__(self, app: App, hosts: Collection[str] | None):
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        reason = refusal(headers, self.hosts)
        if reason and scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})  # not yet accepted: status 403
        elif reason:
            await _refuse(send, 403, reason)
        else:
            await self.app(scope, receive, _safely(send))


def _safely(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_SAFETY]
        await send(message)

    return sent


class LimitBody:
    """Answers 413 to a request whose body is longer than ``max_bytes``, whatever its Content-Length says."""

    def __init__(self, app: App, max_bytes: int):
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        chunks: list[bytes] = []
        size, more = 0, True
        # The body is passed on as one part once it is known to be short enough.
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            more = message.get("more_body", False)
            if size > self.max_bytes:
                await _refuse(send, 413, f"a request may hold {self.max_bytes} bytes")
                return
        body: list[Message] = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]
        chunks.clear()  # or a request would take twice its memory until it is answered

        async def replay() -> Message:
            return body.pop() if body else await receive()

        await self.app(scope, replay, send)


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_SAFETY]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": reason}).encode()})
