"""Read the bodies of requests: only with a valid key, bounded in bytes, values, depth and time.

A program is untrusted and shares the gateway's process with all other episodes, so each limit is also a limit of what
one program can take from the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.requests import Request

from gagpo.envs.gateway import json_values
from gagpo.envs.gateway.messages import GatewayError, Json

MAX_BYTES = 16 << 20  # of a request
MAX_HELD_BYTES = 4 * MAX_BYTES  # of a program's requests that are not answered yet
BODY_SECONDS = 60.0  # in which a body must have arrived
_DISCARD_SECONDS = 5.0  # in which the rest of a rejected body is read
_DISCARD_PAUSE = 0.25  # seconds without data after which no more is expected


class BodyMemory:
    """Counts the bytes of unanswered requests of each key. For the thread of the event loop only."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def reserve(self, key: str) -> Iterator[BodyReservation]:
        """The bytes of one request, counted until it is answered."""
        reservation = BodyReservation(self._bytes, key)
        try:
            yield reservation
        finally:
            reservation.add(-reservation.size)
            if not self._bytes[key]:
                del self._bytes[key]


class BodyReservation:
    """The bytes of one request, as part of the total of its key."""

    def __init__(self, total: Counter[str], key: str):
        self._total = total
        self._key = key
        self.size = 0

    def add(self, count: int) -> None:
        """Raises: GatewayError if the requests of the key hold too many bytes."""
        self.size += count
        self._total[self._key] += count
        if self._total[self._key] > MAX_HELD_BYTES:
            raise GatewayError(429, f"the requests of a program may hold {MAX_HELD_BYTES} bytes: wait for answers")


def require_size(request: Request) -> None:
    """Raises: GatewayError for a body that is too long according to its header."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES:
        raise _too_long()


async def read_body(request: Request, reservation: BodyReservation) -> bytearray:
    """The bytes of a request. Raises: GatewayError for too many, or if they do not arrive."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            is_incomplete = True
            while is_incomplete:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise GatewayError(499, "the client hung up")
                reservation.add(len(message.get("body", b"")))
                body += message.get("body", b"")
                is_incomplete = message.get("more_body", False)
                if len(body) > MAX_BYTES:
                    raise _too_long()
    except TimeoutError:
        raise GatewayError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    request.state.body_is_read = True
    return body


async def discard_body(request: Request) -> bool:
    """Drop what a rejected request still sends; returns whether that was all of it.

    TCP resets a connection that is closed with unread data, and the client may then lose the answer that says what was
    wrong.
    """
    if getattr(request.state, "body_is_read", False):
        return True
    if "expect" in request.headers:  # its client sends the body only after "100 Continue"
        return False
    size = 0
    is_incomplete = True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while is_incomplete and size <= 2 * MAX_BYTES:
                message = await asyncio.wait_for(request.receive(), _DISCARD_PAUSE)
                size += len(message.get("body", b""))
                is_incomplete = message.get("more_body", False)
    return not is_incomplete


def parse_object(body: bytes | bytearray) -> Json:
    """The JSON object of a body. Raises: GatewayError."""
    try:
        value = json_values.parse(body)
    except json_values.JsonTooLarge as error:
        raise GatewayError(400, f"the body is too large: {error}") from None
    except json_values.InvalidJson as error:
        raise GatewayError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise GatewayError(400, "the body must be a JSON object")
    return value


def _too_long() -> GatewayError:
    return GatewayError(413, f"a request may have {MAX_BYTES} bytes")
