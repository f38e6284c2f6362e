"""The viewer following a run: a local server that exports again whenever the run has written."""

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
    """Serves the exported files and nothing else, to its own pages only, without caching."""

    timeout = IDLE_SECONDS

    def parse_request(self) -> bool:
        """Refuse requests of other sites, whatever the method."""
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
        """Nothing: the terminal shows the run."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128  # a page requests more files at once than the default of 5

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that disconnects in the middle of a request."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving(exporter: Exporter, port: int = 0, every: float = 3.0) -> Iterator[str]:
    """Serve ``exporter``'s folder and write it again every few seconds; gives the address to open.

    port: 0 for any free one.
    every: seconds between exports.
    """
    exporter.write()
    handler = functools.partial(_Handler, directory=str(exporter.output))
    server = _Server(("127.0.0.1", port), handler)
    stop = threading.Event()

    def refresh() -> None:
        while not stop.wait(every):  # a half-written file is read the next time
            try:
                exporter.write()
            except (BadResult, OSError):
                continue

    threads = [
        threading.Thread(target=server.serve_forever, daemon=True),
        threading.Thread(target=refresh, daemon=True),
    ]
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
