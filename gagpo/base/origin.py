"""Which requests a server on this machine answers: those under its own names that no other site's page has made.

Any page in the user's browser may send requests to this machine, and one whose name is made to point here may read
the answers too. A browser says under which name it asks (``Host``) and whose page asks (``Origin``,
``Sec-Fetch-Site``), and lets no page change that. Other clients say the former alone.
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
"""Of every answer: its type is not guessed, it stands in no other page, and no other site's page may load it."""


def refusal(headers: Mapping[str, str], hosts: Collection[str] | None) -> str:
    """Why a request with these headers is refused; '' where it is not. hosts: names it may ask under; None for any.

    >>> refusal({"host": "localhost:8000", "origin": "http://localhost:8000"}, LOOPBACK)
    ''
    >>> refusal({"host": "localhost:8000", "origin": "http://evil.example"}, LOOPBACK)
    'asked by a page of another site'
    >>> refusal({"host": "evil.example:8000"}, LOOPBACK)
    'asked under a name that is not of this server'
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if hosts is not None and _name(f"//{host}") not in hosts:
        return "asked under a name that is not of this server"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "asked by a page of another site"
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "asked by a page of another site"
    return ""


def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
