"""Servers of tests, which answer while the test asks."""

import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

LOOK_SECONDS = 0.02  # between two looks whether the server is to end


class Listening(ThreadingHTTPServer):
    """As real servers, it keeps more than the standard library's five connections waiting to be accepted.

    What is beyond them is reset while the accepting thread gets no turn on a busy machine.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, 1024


@contextmanager
def in_thread(server):
    """``server`` answers in a thread of its own, until the end."""
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(5)
