"""A process that runs the browser's driver and cleans up: its owner may be killed at any time.

It ends when its owner does, kills the driver and every browser process, and removes the profile folder. If it is killed
itself, the system kills the driver, the browser ends with that pipe, and the next supervisor removes the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from gagpo.base import guard
from gagpo.base.child import Pipe

PREFIX = "gagpo-web-"
_LOCK = "owner.lock"
_READY = re.compile(r"started successfully on port (\d+)")
_REMOVE_SECONDS = 3.0  # a dying browser may still write into its profile
_REMOVE_PAUSE = 0.02
BROWSER = "browser"
"""Name of the program in the folder that starts the browser."""


def serve(pipe: Pipe, driver: str, browser: str) -> None:
    """Run ``driver`` until the owner of ``pipe`` closes it; every message is answered by ``(port, folder)``.

    The folder contains a program that starts ``browser``.

    If the driver does not start, the answer is ``(0, reason)``.
    """
    guard.adopt_orphans()
    _remove_abandoned()
    folder, lock = _claim()
    owner = os.getpid()
    try:
        _write_starter(folder / BROWSER, browser)
        process = subprocess.Popen(
            [driver, "--port=0", f"--log-path={folder / 'driver.log'}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # This process has one thread, so code between fork and exec is safe.
            preexec_fn=lambda: guard.die_with_parent(owner),
            env={**os.environ, "TMPDIR": str(folder)},
        )
        answer: tuple[int, str] = _port(process), str(folder)
        if not answer[0]:
            answer = 0, f"{driver} ended before it listened (exit status {process.poll()})"
        pipe.send("ready")
        while True:
            pipe.receive()
            pipe.send(answer)
    except OSError as error:
        with suppress(OSError, EOFError):  # the driver cannot be run, or the owner is gone
            pipe.send("ready")
            pipe.receive()
            pipe.send((0, f"{driver}: {error.strerror or error}"))
    except EOFError:
        pass
    finally:
        guard.end_strays(())
        _remove(folder)
        lock.close()


def _port(process: subprocess.Popen[str]) -> int:
    """The port at which the driver listens, or 0 if it ends first."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := _READY.search(line):
            return int(match[1])
    process.wait()
    return 0


def _write_starter(path: Path, browser: str) -> None:
    """Write a program that starts ``browser`` with a debugging port next to the driver's pipe.

    The browser ends with the pipe when the driver is killed. A driver that is itself given the port uses no pipe.
    """
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(browser)} "$@" --remote-debugging-port=0\n', encoding="utf-8")
    path.chmod(0o700)


def _claim() -> tuple[Path, IO[str]]:
    """A new folder for the profile, and the lock that says that it is in use."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = (folder / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _remove_abandoned() -> None:
    """Remove the folders of supervisors that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            print(f"the browser's profile cannot be removed: {folder}", file=sys.stderr)
            return
        time.sleep(_REMOVE_PAUSE)
