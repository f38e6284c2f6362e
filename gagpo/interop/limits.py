"""A bound on the size of HTTP requests, as ASGI middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
"""As ASGI defines it, like a connection's scope."""

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class LimitBody:
    """Answers 413 to a request whose body is longer than ``max_bytes``, announced or not."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], max_bytes: int):
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        chunks: list[bytes] = []
        size, more = 0, True
        # Parts are held back until the whole is known to be short enough; then they go on as one.
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            more = message.get("more_body", False)
            if size > self.max_bytes:
                await _refuse(send, self.max_bytes)
                return
        body: list[Message] = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replay() -> Message:
            return body.pop() if body else await receive()

        await self.app(scope, replay, send)


async def _refuse(send: Send, limit: int) -> None:
    text = f'{{"detail": "a request may hold {limit} bytes"}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text})
