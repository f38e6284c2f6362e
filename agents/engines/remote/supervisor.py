"""The guardian of one server: it ends the server with all its processes when the process that wanted it is gone.

A server is several processes, and the one that asked for it may be killed at any instant. So a small process stands
between: it starts the server in a group of its own, and holds a pipe whose other end the asking process holds. When
that end closes, however that came, the server and everything it started are killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

from gagpo.base import guard

_LOOK_SECONDS = 0.2


def main(descriptor: str, *command: str) -> int:
    """Run ``command`` until it ends or the pipe ``descriptor`` closes; its exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard.adopt_orphans()
    pipe = int(descriptor)
    os.set_inheritable(pipe, False)
    server = subprocess.Popen(command, start_new_session=True)
    print(server.pid, flush=True)  # on the pipe that the asking process reads: whom to look at
    sys.stdout.close()
    try:
        while server.poll() is None:
            if select.select([pipe], [], [], _LOOK_SECONDS)[0]:
                break
    finally:
        with contextlib.suppress(OSError):
            os.killpg(server.pid, signal.SIGKILL)
        server.kill()
        server.wait()
        guard.end_strays(())
    return server.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
