"""A server that sends arbitrary bytes at an arbitrary pace."""

import contextlib
import socketserver
import threading
from contextlib import contextmanager

from tests.served import in_thread


def reply(body, status="200 OK", *headers):
    """A valid HTTP answer with ``body``."""
    lines = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


class RawServer(socketserver.ThreadingTCPServer):
    """script: called with the number of the request, returns bytes to send and seconds to wait until the end.

    requests, sent: numbers of requests and of sent bytes.
    bodies: of the requests.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, script):
        self.script, self.requests, self.sent, self.free = script, 0, 0, threading.Event()
        self.bodies = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        server = self.server
        with contextlib.suppress(OSError, ValueError):
            data = b""
            while b"\r\n\r\n" not in data:
                if not (chunk := self.request.recv(1 << 16)):
                    return
                data += chunk
            head, _, body = data.partition(b"\r\n\r\n")
            size = next(
                (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0
            )
            while len(body) < size and (chunk := self.request.recv(1 << 16)):
                body += chunk
            with server.lock:
                number, server.requests = server.requests, server.requests + 1
                server.bodies.append(body)
            for step in server.script(number):
                if isinstance(step, bytes):
                    self.request.sendall(step)
                    server.sent += len(step)
                elif server.free.wait(step):
                    return

    def finish(self):
        with contextlib.suppress(OSError):
            self.request.shutdown(1)


@contextmanager
def answering(script):
    """A running server on a free port."""
    with RawServer(script) as server, in_thread(server):
        try:
            yield server
        finally:
            server.free.set()
