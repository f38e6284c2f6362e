"""Reads the bodies of requests: only with a valid key, bounded in bytes, values, depth and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.requests import Request

from gagpo.envs.program import json_values
from gagpo.envs.program.messages import Json, RequestRefused

MAX_BYTES = 16 << 20  # of a request
MAX_HELD_BYTES = 4 * MAX_BYTES  # of a program's requests that are not answered yet
BODY_SECONDS = 60.0  # in which a body must have arrived
_DISCARD_SECONDS = 5.0
_DISCARD_PAUSE = 0.25  # seconds without data after which no more is expected


class HeldBytes:
    """How many bytes of requests are held for each key. For the thread of the event loop only."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def hold(self, key: str) -> Iterator[Held]:
        """What one request holds, until it is answered."""
        held = Held(self._bytes, key)
        try:
            yield held
        finally:
            held.add(-held.size)
            if not self._bytes[key]:
                del self._bytes[key]


class Held:
    """The bytes that one request holds."""

    def __init__(self, total: Counter[str], key: str):
        self._total, self._key = total, key
        self.size = 0

    def add(self, count: int) -> None:
        """Raises: RequestRefused if the requests of the key hold too many bytes."""
        self.size += count
        self._total[self._key] += count
        if self._total[self._key] > MAX_HELD_BYTES:
            raise RequestRefused(429, f"the requests of a program may hold {MAX_HELD_BYTES} bytes: wait for answers")


def require_size(request: Request) -> None:
    """Raises: RequestRefused for a body that is too long by its own account."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES:
        raise _too_long()


async def read_body(request: Request, held: Held) -> bytearray:
    """The bytes of a request. Raises: RequestRefused for too many, or if they do not arrive."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise RequestRefused(499, "the client hung up")
                held.add(len(message.get("body", b"")))
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MAX_BYTES:
                    raise _too_long()
    except TimeoutError:
        raise RequestRefused(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    request.state.body_is_read = True
    return body


async def discard_body(request: Request) -> bool:
    """Drop what a rejected request still sends; returns whether that was all of it.

    A connection that is closed with unread data is reset, and the client may then lose the answer.
    """
    if getattr(request.state, "body_is_read", False):
        return True
    if "expect" in request.headers:  # its client sends nothing before it is told to
        return False
    count, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while more and count <= 2 * MAX_BYTES:
                message = await asyncio.wait_for(request.receive(), _DISCARD_PAUSE)
                count += len(message.get("body", b""))
                more = message.get("more_body", False)
    return not more


def parse_object(body: bytes | bytearray) -> Json:
    """The JSON object of a body. Raises: RequestRefused."""
    try:
        value = json_values.parse(body)
    except json_values.JsonTooLarge as error:
        raise RequestRefused(400, f"the body is too large: {error}") from None
    except json_values.InvalidJson as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return value


def _too_long() -> RequestRefused:
    return RequestRefused(413, f"a request may have {MAX_BYTES} bytes")
