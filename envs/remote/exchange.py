"""One HTTP request within bounds: a deadline for all of it, and no byte read beyond what an honest answer has.

An HTTP library's own timeouts are of single reads, so a server that sends a byte now and then is never done, and its
bodies are as long as the server likes. Here both have an end.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx2

from gagpo.base.errors import GagpoError, first_line

CONNECT_SECONDS = 10.0


class ExchangeFailed(GagpoError):
    """No answer came, or none that HTTP knows."""


class DeadlinePassed(ExchangeFailed):
    """The answer was not whole in time."""


class OversizedReply(ExchangeFailed):
    """The answer's body is longer than an honest one."""


@dataclass(frozen=True)
class Reply:
    """A whole answer. headers: by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> str:
        """The beginning of the body, on one line, for people."""
        return " ".join(self.body[:300].decode(errors="replace").split()) or "it says nothing"


def is_loopback(url: str) -> bool:
    """Whether ``url`` names this machine, as no proxy can see it.

    >>> [is_loopback(f"http://{host}:8000/v1") for host in ("127.0.0.1", "localhost", "[::1]", "example.org")]
    [True, True, True, False]
    """
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name, or no address at all
        return False


@functools.cache
def _authorities(environment: bool) -> ssl.SSLContext:
    """Read once: it takes 30 ms of a processor, a request less than one, and every look at a container is a request."""
    return httpx2.create_ssl_context(trust_env=environment)


def open_http(*, proxies: bool, socket: str | None = None) -> httpx2.AsyncClient:
    """A client for :func:`exchange`, for one event loop; it follows no redirect and keeps no cookie.

    There is no limit on connections: whoever asks knows how much is under way.

    proxies: heed the environment's, which are never meant for servers on this machine (:func:`is_loopback`).
    socket: path of a unix socket to which everything goes, whatever host is named.
    """
    authorities = _authorities(proxies)
    return httpx2.AsyncClient(
        transport=None if socket is None else httpx2.AsyncHTTPTransport(authorities, uds=socket),
        verify=authorities,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=proxies,
        follow_redirects=False,
    )


async def exchange(
    http: httpx2.AsyncClient,
    method: str,
    url: str,
    body: bytes | None,
    *,
    deadline: float,
    most: int,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """The answer to a request whose body is JSON, whatever its status.

    deadline: seconds from the first step to the last byte. most: bytes of the answer's body, of which no more is held.
    Raises :class:`ExchangeFailed`.
    """
    fixed = {"content-type": "application/json", "accept-encoding": "identity"}
    try:
        async with asyncio.timeout(deadline):
            async with http.stream(method, url, content=body, headers={**fixed, **(headers or {})}) as response:
                held = bytearray()
                async for chunk in response.aiter_raw():
                    held += chunk
                    if len(held) > most:
                        raise OversizedReply(f"{url} answered with more than {most} bytes")
                return Reply(response.status_code, dict(response.headers), bytes(held))
    except TimeoutError:
        raise DeadlinePassed(f"{url} did not answer within {deadline:g} s") from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise ExchangeFailed(f"{url} cannot be reached: {first_line(error)}") from None
