"""Servers of tests, which answer while the test asks."""

import threading
from contextlib import contextmanager

LOOK_SECONDS = 0.02  # between two looks whether the server is to end


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
