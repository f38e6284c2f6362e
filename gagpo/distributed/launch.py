"""Start the ranks of a trainer on this machine, and end all of them when one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gagpo.base.child import free_port
from gagpo.base.errors import Interrupted, Terminated
from gagpo.base.interpreter import module_command
from gagpo.base.rank import Rank, started_as_rank
from gagpo.distributed.environment import LOST, PARENT
from gagpo.distributed.errors import RanksEnded

POLL_SECONDS = 0.1
INTERRUPTED = (130, 143)
EXIT_SECONDS = 3.0  # for the other ranks to end by themselves after one was killed
SAVE_SECONDS = 60.0  # the same after an interruption, when all ranks write a checkpoint


def starts_ranks(processes: int) -> bool:
    """Whether this process must start the ranks: the settings ask for several, and it is not a rank itself."""
    return processes > 1 and not started_as_rank()


def run(processes: int, arguments: Sequence[str]) -> None:
    """Run ``gagpo`` with ``arguments`` as ``processes`` ranks on this machine until all have ended.

    An interruption of this process is passed on to the ranks.

    Raises:
        RanksEnded: a rank failed; the message names the first that did.
        Interrupted, Terminated: the ranks were interrupted.
    """
    children: list[subprocess.Popen[bytes]] = []
    with _forwarding_signals(children):
        command, port = module_command("gagpo", *arguments), free_port()
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # else warnings about a lost peer fill a page
        for number in range(processes):
            variables = Rank(number, processes, number, processes).variables("127.0.0.1", port)
            variables[PARENT] = str(os.getpid())
            # In its own session, Ctrl-C reaches only this process, which passes it on to all ranks at once.
            child = subprocess.Popen(command, env={**quiet, **os.environ, **variables}, start_new_session=True)
            children.append(child)
        try:
            first = _first_failure(children)
        finally:
            _end(children)
    if first is not None:
        raise _failure(first, children)


def _first_failure(children: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The rank that failed first, or None once all have ended without an error."""
    while True:  # of ranks that failed together, the lowest counts as the first
        statuses = [child.poll() for child in children]
        failed = next((rank for rank, status in enumerate(statuses) if status), None)
        if failed is not None or None not in statuses:
            return failed
        time.sleep(POLL_SECONDS)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the remaining ranks.

    A rank that failed has told the others through their store, so they get a moment to end by themselves. A killed one
    has told nobody: the others would wait for it in a collective call until its heartbeat is missed.
    """
    killed = any(child.returncode is not None and child.returncode < 0 for child in children)
    if killed:
        _signal(children, signal.SIGTERM)
    interrupted = any(child.returncode in INTERRUPTED for child in children)
    seconds = 3 * EXIT_SECONDS
    if killed:
        seconds = EXIT_SECONDS
    elif interrupted:
        seconds = SAVE_SECONDS
    deadline = time.monotonic() + seconds
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    _signal(children, signal.SIGKILL)
    for child in children:
        child.wait()


def _signal(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _failure(first: int, children: Sequence[subprocess.Popen[bytes]]) -> BaseException:
    """The error for this process, from the ``first`` rank that failed."""
    status = children[first].returncode
    name = f"rank {first} of {len(children)}"
    if status in INTERRUPTED:
        return Interrupted() if status == 130 else Terminated(status)
    if status < 0:
        killed = f"was killed by signal {-status} ({signal.Signals(-status).name}), and the others were ended"
        return RanksEnded(f"{name} {killed}: continue with gagpo train --resume RUN", 2, reported=False)
    return RanksEnded(f"{name} ended with status {status}", 2 if status == LOST else status, reported=True)


@contextmanager
def _forwarding_signals(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to the ranks. Python delivers signals to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda received, _: _signal(children, received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
