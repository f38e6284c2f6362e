"""A local server of the viewer that exports again while the run trains."""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import BinaryIO

from gagpo.base.origin import LOOPBACK, SAFETY_HEADERS, refusal
from gagpo.eval.viewer.export import Exporter
from gagpo.runs.reading import BadResult

HEADERS = {
    **SAFETY_HEADERS,
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
}
IDLE_SECONDS = 30.0  # after which a silent connection is closed


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves only the exported files, without caching, and only to its own pages."""

    timeout = IDLE_SECONDS

    def parse_request(self) -> bool:
        """Reject requests from other sites."""
        if not super().parse_request():
            return False
        if reason := refusal({name.lower(): value for name, value in self.headers.items()}, LOOPBACK):
            self.send_error(HTTPStatus.FORBIDDEN, reason)
        return not reason

    def send_head(self) -> BinaryIO | None:
        try:
            return super().send_head()
        except ValueError:  # a path that no file can have
            self.send_error(HTTPStatus.NOT_FOUND)
            return None

    def list_directory(self, path: object) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: the terminal shows the run."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128  # a page requests more files at once than the default of 5

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that disconnects in the middle of a request."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving(exporter: Exporter, port: int = 0, every: float = 3.0) -> Iterator[str]:
    """Serve ``exporter``'s folder, export again every ``every`` seconds, and yield the address to open."""
    exporter.write()
    handler = functools.partial(_Handler, directory=str(exporter.output))
    server = _Server(("127.0.0.1", port), handler)
    stop = threading.Event()

    def refresh() -> None:
        while not stop.wait(every):  # a half-written file is read next time
            try:
                exporter.write()
            except (BadResult, OSError):
                continue

    threads = [threading.Thread(target=run, daemon=True) for run in (server.serve_forever, refresh)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join(timeout=30)
