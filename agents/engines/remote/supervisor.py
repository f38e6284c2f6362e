"""The guardian of one server: it ends the server with all its processes when the process that wanted it is gone.

A server is several processes, and the one that started it may be killed at any instant. This small process stands
between: it starts the server in a group of its own, and when the connection to its own parent closes, for whatever
reason, it kills the server and everything that the server started.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from contextlib import suppress

from gagpo.base import guard
from gagpo.base.child import Pipe

_LOOK_SECONDS = 0.2


def main(pipe: Pipe, *command: str) -> None:
    """Run ``command`` until it ends or the ``pipe`` closes; the first message is its process id."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard.adopt_orphans()
    server = subprocess.Popen(command, start_new_session=True)
    try:
        with suppress(OSError):
            pipe.send(server.pid)
        while server.poll() is None:
            if select.select([pipe.socket], [], [], _LOOK_SECONDS)[0]:
                break
    finally:
        status = guard.end(server.pid) if server.returncode is None else server.returncode
        guard.end_strays(())
    sys.exit(status)
