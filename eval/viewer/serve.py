"""The viewer following a run: a server on this machine that exports anew whenever the run has written."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from gagpo.eval.reading import BadResult
from gagpo.eval.viewer.export import Exporter


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Hands out the exported files and nothing else, to this machine alone, and keeps none in the browser."""

    def do_GET(self) -> None:
        # Another site's page may point its own name at this address: only the plain loopback names are answered.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        super().do_GET()

    def list_directory(self, path: object) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the terminal shows the run."""


@contextmanager
def serving(exporter: Exporter, port: int = 0, every: float = 3.0) -> Iterator[str]:
    """Serve ``exporter``'s folder and write it again every few seconds; the address to open.

    port: 0 for any free one. What the run has half written is shown when it is whole.
    """
    exporter.write()
    handler = functools.partial(_Handler, directory=str(exporter.output))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    stop = threading.Event()

    def refresh() -> None:
        while not stop.wait(every):  # what is half written is shown the next time
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
