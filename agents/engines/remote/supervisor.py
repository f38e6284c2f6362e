"""A small process between a trainer and one server, which is several processes.

It starts the server in a process group, and kills everything that the server started when the connection to the trainer
closes, for example because the trainer was killed.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from contextlib import suppress

from gagpo.base import guard
from gagpo.base.child import Pipe

_POLL_SECONDS = 0.2


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
            if select.select([pipe.socket], [], [], _POLL_SECONDS)[0]:
                break
    finally:
        status = guard.end(server.pid) if server.returncode is None else server.returncode
        guard.end_strays(())
    sys.exit(status)
