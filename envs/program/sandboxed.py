"""Run a program in a sandbox whose only connection to the outside is the gateway.

The network of a sandbox has only a loopback, on which nothing outside of it listens. So a helper inside makes a socket
that listens on the gateway's port, passes it out over a pair of sockets, and becomes the program. This process accepts
its connections, outside, and relays their bytes to the gateway and to no other address. The program keeps no descriptor
that leads out, and the gateway needs no second address.

Two threads of a run's process: the first waits for the program, the other relays until the process ends with the run.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from gagpo.base.sandbox import arguments, filter_file
from gagpo.envs.program.command import run

DEFAULT_SIZE = 256  # megabytes of /tmp and of /dev/shm, where the program has no limit of memory
_CHUNK = 1 << 16

# Python closes both sockets where the program begins: they are not inheritable.
_ENTER = """
import os, socket, sys
pair = socket.socket(fileno=int(sys.argv[1]))
pair.set_inheritable(False)
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=128)
socket.send_fds(pair, [b"."], [listener.fileno()])
os.execvp(sys.argv[3], sys.argv[3:])
"""


def run_sandboxed(command: Sequence[str], variables: Mapping[str, str], memory: int | None) -> tuple[int, str, str]:
    """:func:`gagpo.envs.program.command.run` in a sandbox.

    variables: of the episode; the sandbox reaches the gateway of ``ANTHROPIC_BASE_URL`` and may write to ``TMPDIR``.
    memory: limit of ``/tmp`` and of ``/dev/shm`` in megabytes each; the fork server counts both as memory.
    """
    port = urlsplit(variables["ANTHROPIC_BASE_URL"]).port or 0
    outer, inner = socket.socketpair()

    def relay() -> None:
        inner.close()  # the program's end has the only copy, so a failure in the sandbox ends the wait for the listener
        with outer, suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(outer, 1, 1)
            if descriptors:
                asyncio.run(_relay(socket.socket(fileno=descriptors[0]), port))

    with filter_file() as filter_descriptor:
        line = arguments(command, [variables["TMPDIR"]], (memory or DEFAULT_SIZE) << 20, filter_descriptor.fileno())
        enter = [sys.executable, "-I", "-S", "-B", "-c", _ENTER, str(inner.fileno()), str(port)]
        return run(
            [*line, *enter, *command],
            [inner.fileno(), filter_descriptor.fileno()],
            # After the program's start: a process with threads must not fork.
            threading.Thread(target=relay, name="relay to the gateway", daemon=True).start,
        )


async def _relay(listener: socket.socket, port: int) -> None:
    """Connect each connection of ``listener`` with the gateway, until this is cancelled."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            gateway_reader, gateway_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the gateway has ended
            writer.close()
            return
        await asyncio.gather(_pump(reader, gateway_writer), _pump(gateway_reader, writer))
        writer.close()
        gateway_writer.close()

    server = await asyncio.start_server(connect, sock=listener)
    async with server:
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes to their end, and pass on the end: the gateway withdraws requests of clients that hang up."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()
