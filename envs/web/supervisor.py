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
_STARTS = 3  # of the driver: it ends if it cannot listen, for instance because another process took its port
_LAST_WORDS = 200  # characters of what an ended driver has printed
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
    try:
        _write_starter(folder / BROWSER, browser)
        answer = 0, ""
        for _ in range(_STARTS):
            process, answer = _start(driver, folder)  # kept: without it the pipe that the driver prints to is closed
            if process.poll() is None:
                break
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


def _start(driver: str, folder: Path) -> tuple[subprocess.Popen[str], tuple[int, str]]:
    """Start the driver. With its process: the port at which it listens and ``folder``, or 0 and why it ended first."""
    owner = os.getpid()
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
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        if match := _READY.search(line):
            return process, (int(match[1]), str(folder))
        printed = (printed + line)[-_LAST_WORDS:]
    reason = f"{driver} ended before it listened (exit status {process.wait()})"
    return process, (0, f"{reason}: {' '.join(printed.split())}" if printed.strip() else reason)


def _write_starter(path: Path, browser: str) -> None:
    """Write a program that starts ``browser`` with a debugging port next to the driver's pipe.

    The browser ends with the pipe when the driver is killed. A driver that is itself given the port uses no pipe.
    """
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(browser)} "$@" --remote-debugging-port=0\n', encoding="utf-8")
    path.chmod(0o700)


def _claim() -> tuple[Path, IO[str]]:
    """A new folder for the profile, and the lock that says that it is in use."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = (folder / _LOCK).open("w")
        except FileNotFoundError:  # another supervisor has removed the folder as abandoned
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        lock.close()  # as above, and it found the file unlocked


def _remove_abandoned() -> None:
    """Remove the folders of supervisors that were killed.

    One may have no lock: a dying browser wrote into it again after everything was removed.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("a") as lock:
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
