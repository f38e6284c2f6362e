"""A small HTTP server whose pages come from a task source; the only address that the browser can reach."""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MOST_FORM = 1_000_000  # bytes of a posted form
MOST_FILE = 20_000_000
_SOCKET_SECONDS = 30.0
_SHOWN = ("text/", "image/", "font/", "application/javascript", "application/json", "application/xml")


@dataclass(frozen=True)
class PageRequest:
    """What the browser asks for.

    form: the fields of a query or of a posted form, in order.
    """

    method: str
    path: str
    form: list[tuple[str, str]]


@dataclass(frozen=True)
class PageResponse:
    """An answer to the browser.

    location: address to go to instead, or empty.
    lasting: the browser may keep the body for later episodes.
    """

    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    status: int = 200
    location: str = ""
    lasting: bool = False


Pages = Callable[[PageRequest], PageResponse]


def message(text: str, status: int) -> PageResponse:
    """A page with one line."""
    return PageResponse(f"<!doctype html><title>{text}</title><p>{text}</p>".encode(), status=status)


NOT_FOUND = message("This page does not exist.", 404)


@dataclass
class Files:
    """Serves the files of a folder: never a file outside of it, also through links.

    lasting: the browser may keep scripts, styles and pictures for later episodes.
    files: contents that were read, by path.
    """

    root: Path
    lasting: bool = False
    files: dict[str, PageResponse] = field(default_factory=dict)

    def __call__(self, request: PageRequest) -> PageResponse:
        if request.path not in self.files:
            self.files[request.path] = self._read(request.path)
        return self.files[request.path]

    def _read(self, path: str) -> PageResponse:
        root = self.root.resolve()
        with suppress(OSError, ValueError):
            file = (root / path.lstrip("/")).resolve()
            if file.is_dir():
                file = (file / "index.html").resolve()
            if not file.is_relative_to(root) or not file.is_file() or file.stat().st_size > MOST_FILE:
                return NOT_FOUND
            media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            if not media_type.startswith(_SHOWN):
                return message("Files of this kind cannot be shown.", 415)
            lasting = self.lasting and media_type != "text/html"
            full_kind = f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type
            return PageResponse(file.read_bytes(), full_kind, lasting=lasting)
        return NOT_FOUND


class PageServer:
    """Serves ``pages``, which may change at any time, until :meth:`close`.

    host: the address to listen at.
    """

    def __init__(self, host: str):
        self.pages: Pages = lambda request: NOT_FOUND
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _SOCKET_SECONDS
            # Head and body leave in one packet at once: in two, the second would wait for the first to be confirmed.
            wbufsize = -1
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._answer(self._form(urlsplit(self.path).query))

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > MOST_FORM:
                    self.close_connection = True
                    return self._send(message("This form is too long.", 413))
                body = self.rfile.read(int(length)).decode("utf-8", "replace")
                return self._answer(self._form(body))

            def _form(self, text: str) -> list[tuple[str, str]]:
                try:
                    return parse_qsl(text, keep_blank_values=True, max_num_fields=1000)
                except ValueError:
                    return []

            def _answer(self, form: list[tuple[str, str]]) -> None:
                path = unquote(urlsplit(self.path).path, errors="replace")
                self._send(outer.pages(PageRequest(self.command, path, form)))

            def _send(self, response: PageResponse) -> None:
                self.send_response(response.status if not response.location else 303)
                self.send_header("Content-Type", response.content_type)
                self.send_header("Content-Length", str(len(response.body)))
                self.send_header("Cache-Control", "max-age=86400" if response.lasting else "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                if response.location:
                    self.send_header("Location", response.location)
                self.end_headers()
                self.wfile.write(response.body)

            def log_message(self, *values: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a browser that was killed breaks its connections

        self._server = Quiet((host, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SOCKET_SECONDS)


def fields(form: list[tuple[str, str]]) -> Mapping[str, str]:
    """The last value of each field."""
    return dict(form)
