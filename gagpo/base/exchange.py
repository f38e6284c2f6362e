"""One HTTP request with a total deadline and a limit on the size of the answer.

The timeouts of HTTP libraries apply to single reads, so a server that sends a byte now and then never times out.
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

CONNECT_SECONDS = 4.0


class ExchangeFailed(GagpoError):
    """No answer, or an invalid one."""


class Unreachable(ExchangeFailed):
    """No connection could be made."""


class DeadlinePassed(ExchangeFailed):
    """The answer was not complete in time."""


class OversizedReply(ExchangeFailed):
    """The answer's body is too long."""


@dataclass(frozen=True)
class Reply:
    """A complete answer.

    status: the HTTP status code.
    headers: by lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def excerpt(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.body[:300].decode(errors="replace").split()) or "(empty)"


def is_loopback(url: str) -> bool:
    """Whether ``url`` names this machine, which a proxy cannot reach.

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
    """Cached: reading the certificates takes 30 ms of CPU time, a request less than one."""
    return httpx2.create_ssl_context(trust_env=environment)


def open_http(*, proxies: bool) -> httpx2.AsyncClient:
    """A client for :func:`exchange` in one event loop, without redirects, cookies or a limit on connections.

    proxies: use those of the environment variables; must be false for servers on this machine (:func:`is_loopback`).
    """
    authorities = _authorities(proxies)
    return httpx2.AsyncClient(
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
    """The answer to a request with a JSON body, whatever its status. Raises ExchangeFailed.

    deadline: seconds from the start to the last byte.
    most: limit on the answer's body, in bytes.
    """
    fixed = {"content-type": "application/json", "accept-encoding": "identity"}
    try:
        async with asyncio.timeout(deadline):
            async with http.stream(method, url, content=body, headers={**fixed, **(headers or {})}) as response:
                content = bytearray()
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > most:
                        raise OversizedReply(f"answered with more than {most} bytes", where=url)
                return Reply(response.status_code, dict(response.headers), bytes(content))
    except TimeoutError:
        raise DeadlinePassed(f"did not answer within {deadline:g} s", where=url) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise Unreachable(f"cannot be reached: {first_line(error)}", where=url) from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise ExchangeFailed(f"cannot be reached: {first_line(error)}", where=url) from None
