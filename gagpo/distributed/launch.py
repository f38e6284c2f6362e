"""Starting the ranks of a trainer on this machine, and ending all of them when one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gagpo.distributed.environment import LOST, PARENT, started_as_rank
from gagpo.distributed.errors import RanksEnded

POLL_SECONDS = 0.1
INTERRUPTED = (130, 143)
GRACE = 3.0
"""Seconds that the other ranks have to end by themselves after one has died; then they are killed."""

FAREWELL = 60.0
"""The same after an interruption, when all of them are saving."""


def wanted_here(processes: int) -> bool:
    """Whether this process has to start ranks: the settings ask for several, and it is not one of them itself."""
    return processes > 1 and not started_as_rank()


def run(processes: int, arguments: Sequence[str]) -> None:
    """Run ``gagpo`` with ``arguments`` as ``processes`` ranks on this machine, to the end of all.

    An interruption of this process is passed on. Raises :class:`RanksEnded`, naming the rank that ended first, once no
    rank is left; KeyboardInterrupt or SystemExit where the ranks were interrupted.
    """
    children: list[subprocess.Popen[bytes]] = []
    with _passed_on(children):
        port = str(_free_port())
        for rank in range(processes):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, PARENT: str(os.getpid())}
            command = [sys.executable, "-m", "gagpo", *arguments]
            environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings of a lost peer fill a page
            # A session of its own: Ctrl-C reaches this process alone, which passes it on to all at once.
            children.append(subprocess.Popen(command, env=environment, start_new_session=True))
        try:
            first = _first_failure(children)
        finally:
            _end(children)
    if first is not None:
        _judge(first, children)


def _first_failure(children: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The rank that ended first in another way than well, or None when all have ended well."""
    while True:
        statuses = [child.poll() for child in children]
        for rank, status in enumerate(statuses):
            if status:
                return rank
        if all(status == 0 for status in statuses):
            return None
        time.sleep(POLL_SECONDS)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End whoever is left.

    A rank that said why it ended has told the others, who have a moment to follow by themselves; a killed one has not.
    """
    killed = any(child.returncode is not None and child.returncode < 0 for child in children)
    if killed:
        _signal(children, signal.SIGTERM)
    interrupted = any(child.returncode in INTERRUPTED for child in children)
    deadline = time.monotonic() + (GRACE if killed else FAREWELL if interrupted else 3 * GRACE)
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    _signal(children, signal.SIGKILL)
    for child in children:
        child.wait()


def _signal(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _judge(first: int, children: Sequence[subprocess.Popen[bytes]]) -> None:
    status = children[first].returncode
    if status == 130:
        raise KeyboardInterrupt
    if status == 143:
        raise SystemExit(143)
    who = f"rank {first} of {len(children)}"
    if status < 0:
        raise RanksEnded(
            f"{who} was killed by signal {-status} ({signal.Signals(-status).name}), and the others were ended: "
            "continue with gagpo train --resume RUN",
            2,
            told=False,
        )
    raise RanksEnded(f"{who} ended with status {status}", 2 if status == LOST else status, told=True)


@contextmanager
def _passed_on(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """SIGTERM and SIGINT go to the ranks, who end in order. Python hears signals in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: object) -> None:
        _signal(children, number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
