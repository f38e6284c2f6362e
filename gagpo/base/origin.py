"""Refuse requests that other sites' pages send to a server on this machine.

Any page in the user's browser may send requests to this machine, and DNS rebinding lets it read the answers. A browser
sends the server's name (``Host``) and the page's site (``Origin``, ``Sec-Fetch-Site``), which a page cannot change.
Other clients send only the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")

SAFETY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer: no type guessing, no framing, no loading by another site's page."""


def refusal(headers: Mapping[str, str], hosts: Collection[str] | None) -> str:
    """Why a request with these headers is refused, or an empty string.

    hosts: allowed names of the server; None for any.

    >>> refusal({"host": "localhost:8000", "origin": "http://localhost:8000"}, LOOPBACK)
    ''
    >>> refusal({"host": "localhost:8000", "origin": "http://evil.example"}, LOOPBACK)
    'asked by a page of another site'
    >>> refusal({"host": "evil.example:8000"}, LOOPBACK)
    'asked under a name that is not of this server'
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if hosts is not None and host_name(host) not in hosts:
        return "asked under a name that is not of this server"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "asked by a page of another site"
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "asked by a page of another site"
    return ""


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without the port; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
