"""Run the runs of a sweep, each in a process, as many at once as the machine can hold.

SIGTERM and Ctrl-C reach this process alone, because every run has a session of its own. It passes SIGTERM on: each run
ends its update, writes a checkpoint and exits. Runs that have not ended after ``SAVE_SECONDS``, and all of them after a
second signal, are killed with their process groups. If this process is killed, the system kills the runs
(:mod:`gagpo.sweeps.child`).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from gagpo.base.interpreter import module_command
from gagpo.distributed.launch import INTERRUPTED, SAVE_SECONDS
from gagpo.sweeps.capacity import Capacity, Need, Share, threads_of
from gagpo.sweeps.status import RunStatus

POLL_SECONDS = 0.2
KILL_SECONDS = 5.0  # for a killed process to be gone: one in an uninterruptible wait must not block the sweep
LAST_BYTES = 4096  # of a log, in which the error of a failed run is looked for

Observe = Callable[[RunStatus], None]


@dataclass
class Process:
    """A run that is under way.

    log_start: bytes that earlier processes have written to its log.
    started: by the monotonic clock.
    """

    status: RunStatus
    share: Share
    popen: subprocess.Popen[bytes]
    log_start: int
    started: float


class Runner:
    """Runs all runs that are not finished.

    needs: what each run takes, in the order of ``statuses``.
    observe: called with a run when its state changes.
    watch: called several times a second.
    stopped_by: the number of the first signal; 0 if none has come.
    """

    def __init__(
        self,
        config: str,
        statuses: Sequence[RunStatus],
        needs: Sequence[Need],
        capacity: Capacity,
        observe: Observe,
        watch: Callable[[], None],
    ):
        self.config = config
        self.capacity = capacity
        self.observe = observe
        self.watch = watch
        self.stopped_by = 0
        self._killing = False
        self._waiting = [pair for pair in zip(statuses, needs, strict=True) if pair[0].state != "finished"]
        self._running: list[Process] = []

    def run(self) -> None:
        """Run until all have ended, or a signal has come and all have stopped. No process is left, whatever happens."""
        with self._signals():
            try:
                while (self._waiting or self._running) and not self.stopped_by:
                    self._start_fitting()
                    time.sleep(POLL_SECONDS)
                    self._take_ended()
                    self.watch()
            except BaseException:  # such as a closed pipe: what cannot be shown must not keep runs from being ended
                self.observe = _ignore
                raise
            finally:
                self._end_all()

    def _start_fitting(self) -> None:
        """Start the waiting runs that fit, in order; a later one does not overtake one that needs more."""
        while self._waiting and not self.stopped_by:
            status, need = self._waiting[0]
            share = self.capacity.take(need)
            if share is None:
                return
            self._waiting.pop(0)
            self._running.append(self._start(status, share))
            status.state = "running"
            self.observe(status)

    def _start(self, status: RunStatus, share: Share) -> Process:
        command = self._words(status)
        status.log.parent.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, **self.capacity.variables(share), "PYTHONUNBUFFERED": "1"}
        with status.log.open("ab") as log:
            log.write(f"$ {shlex.join(['gagpo', *command])}\n".encode())
            log.flush()
            # Before the process starts: both write through one file position, which its first lines move on.
            log_start = log.tell()
            popen = subprocess.Popen(
                module_command("gagpo.sweeps.child", str(os.getpid()), *command),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            return Process(status, share, popen, log_start, time.monotonic())

    def _words(self, status: RunStatus) -> list[str]:
        run = status.run
        if status.changes is not None:
            return ["train", "--resume", str(run.folder), *status.changes]
        threads = []
        if not run.settings.threads:
            threads = [f"threads={threads_of(run.settings, self.capacity)}"]
        return ["train", self.config, *run.overrides, *threads, "--runs", str(run.folder.parent)]

    def _take_ended(self) -> None:
        for process in list(self._running):
            process.status.seconds = time.monotonic() - process.started
            code = process.popen.poll()
            if code is None:
                continue
            self._running.remove(process)
            self.capacity.give_back(process.share)
            _signal_group(process.popen, signal.SIGKILL)  # what a crashed run has left in its group
            self._conclude(process, code)

    def _conclude(self, process: Process, code: int) -> None:
        """Set the final state of a run whose process has ended with ``code``."""
        status = process.status
        status.refresh()
        if code == 0:
            status.state = "finished"
        elif self.stopped_by:
            status.state = "stopped"
        else:
            status.state = "failed"
            status.reason = _reason(process, code)
        self.observe(status)

    # The end ----------------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """End the runs that are under way: in order within the deadline, then by force."""
        if not self._running:
            return
        self.stopped_by = self.stopped_by or signal.SIGTERM  # an error in this process ends them, too
        for process in self._running:
            with suppress(OSError):
                process.popen.send_signal(signal.SIGTERM)
        self._await(SAVE_SECONDS)
        for process in self._running:
            _signal_group(process.popen, signal.SIGKILL)
        self._killing = False
        self._await(KILL_SECONDS)

    def _await(self, seconds: float) -> None:
        """Wait until all have ended, at most ``seconds`` or until a second signal."""
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline and not self._killing:
            time.sleep(POLL_SECONDS)
            self._take_ended()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals instead of raising them. Python delivers them to the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stopped_by:
            self._killing = True
            return
        self.stopped_by = number
        count = len(self._running)
        line = f"stopping {count} run{'s' * (count != 1)}: each writes a checkpoint first; Ctrl-C again kills them"
        with suppress(OSError, RuntimeError):  # a stream that was just being written to cannot be entered again
            print(line, file=sys.stderr, flush=True)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the process group of a run, which also has what the run has started."""
    with suppress(OSError):
        os.killpg(process.pid, number)


def _ignore(status: RunStatus) -> None:
    """Show nothing."""


def _reason(process: Process, code: int) -> str:
    """Why a run ended with ``code``: a signal, or the last line that it has printed."""
    if code < 0:
        hint = "; if memory ran out, lower --jobs" if -code == signal.SIGKILL else ""
        return f"killed by signal {-code} ({signal.Signals(-code).name}){hint}"
    if code in INTERRUPTED:
        return "it was interrupted"
    return f"status {code}: {_last_line(process)}"


def _last_line(process: Process) -> str:
    """The program's error in the log of a run, or else the last line there."""
    try:
        with process.status.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(process.log_start, size - LAST_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("gagpo: ") for line in lines if line.startswith("gagpo: ")]
    return (errors or lines or ["it printed nothing"])[-1][:300]
