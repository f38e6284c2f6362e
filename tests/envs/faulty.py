"""Environments that break in every way a test asks for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

import gymnasium

from gagpo.base.child import pack
from gagpo.envs.base import Outcome, TextEnv
from gagpo.envs.tasks import Task, TaskSet


class FaultyEnv(TextEnv):
    """An environment that breaks on request, in the ways of ``faults``.

    The action ``crash`` crashes it at once, a task ``at-reset:crash`` at the reset, and the argument ``broken`` in the
    constructor. With ``marker``, a path, a fault happens only once: it creates the file, and does nothing where the
    file exists.
    """

    faults: ClassVar[tuple[str, ...]] = (
        *("crash", "exit", "sleep", "spin", "raise", "observation", "surrogate", "reward", "shape", "unpicklable"),
        *("huge", "stop", "child", "babble", "burst", "brood", "escape", "fork", "orphan", "forge", "bigint"),
        *("vast reward", "interrupt", "quit", "cancel", "success", "success in info"),
    )

    def __init__(self, broken: str = "", marker: str = "", **kwargs: Any):
        super().__init__(**kwargs)
        self.marker = marker
        if broken:
            self._fail(broken)

    def tasks(self, split: str) -> TaskSet:
        names = ["quiet", *(f"at-reset:{fault}" for fault in self.faults)] if split == "train" else ["other"]
        return TaskSet(split, [Task(name, split, "faulty", digest=name) for name in names])

    def begin(self, task: Task) -> Outcome:
        self.start = int(self.np_random.integers(1_000_000))
        self.said: list[str] = []
        _, _, fault = task.id.partition(":")
        return self._fail(fault) if fault else self._look()

    def act(self, action: str) -> Outcome:
        self.said.append(action)
        if action == "end":
            return Outcome("The end.", 1.0, terminated=True, success=True)
        if action.startswith("nap "):
            time.sleep(float(action.split()[1]))
        return self._fail(action) if action in self.faults else self._look()

    def _look(self) -> Outcome:
        digest = hashlib.sha256("\n".join(self.said).encode(errors="replace")).hexdigest()[:8]
        return Outcome(f"start {self.start} turn {len(self.said)} said {digest} process {os.getpid()}")

    def _fail(self, fault: str) -> Outcome:
        if self.marker:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return self._look()
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "exit":
            os._exit(3)
        elif fault == "sleep":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            while True:
                time.sleep(1000)
        elif fault == "spin":
            _never = max(range(10**15))  # holds the interpreter lock throughout
        elif fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            os._exit(4)
        elif fault == "babble":
            for descriptor in range(3, 64):
                try:
                    socket.socket(fileno=os.dup(descriptor)).send(b"nonsense" * 4)
                except OSError:
                    continue
        elif fault == "burst":
            self._hoard = bytearray(600 * 2**20)
        elif fault == "brood":  # of children that each take little
            for _ in range(8):
                subprocess.Popen([sys.executable, "-c", "import time; x = b'x' * 2**26; time.sleep(1000)"])
            time.sleep(1000)
        elif fault == "escape":  # from the process group, and from the parent
            expected, actual = os.pipe()
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    os.write(actual, str(os.getpid()).encode())
                    time.sleep(1000)
                os._exit(0)
            os.wait()
            return Outcome(f"escaped: {os.read(expected, 20).decode()}")
        elif fault == "fork":
            if os.fork() == 0:
                return Outcome("I am the child.", 100.0, terminated=True, success=True)
            time.sleep(0.3)
        elif fault == "orphan":
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(4)
        elif fault == "forge":  # answers with a frame of the right form and without meaning
            serving = next(frame for frame in _callers() if "token" in frame.f_locals)
            message = {"answer": 42}
            serving.f_locals["connection"].sendall(pack(message, serving.f_locals["token"]))
        elif fault == "raise":
            raise RuntimeError("broken on purpose")
        elif fault == "interrupt":
            raise KeyboardInterrupt
        elif fault == "quit":
            sys.exit("broken on purpose")
        elif fault == "cancel":
            raise asyncio.CancelledError
        outcome = self._look()
        if fault == "observation":
            outcome.observation = None  # type: ignore[assignment]
        elif fault == "surrogate":
            outcome.observation = "\ud800"
        elif fault == "reward":
            outcome.reward = float("nan")
        elif fault == "success":
            outcome.success = "no"
        elif fault == "success in info":
            outcome.extras["success"] = "no"
        elif fault == "vast reward":
            outcome.reward = 1e300
        elif fault == "unpicklable":
            outcome.extras["open"] = lambda: None
        elif fault == "bigint":
            outcome.extras["big"] = 10**5000
        elif fault == "huge":
            outcome.extras["huge"] = "x" * 70_000_000
        elif fault == "shape":
            self._shape = True
        return outcome

    def step(self, action: str) -> Any:
        result = super().step(action)
        return result[:4] if self.__dict__.pop("_shape", False) else result


class BrokenEnv(FaultyEnv):
    """An environment whose training episodes all fail at the reset."""

    def tasks(self, split: str) -> TaskSet:
        names = [f"at-reset:raise:{number}" for number in range(8)] if split == "train" else ["other"]
        return TaskSet(split, [Task(name, split, "faulty", digest=name) for name in names])

    def begin(self, task: Task) -> Outcome:
        if task.split == "train":
            raise RuntimeError("broken on purpose")
        return super().begin(task)


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


for _name, _kind in (("Faulty", FaultyEnv), ("Broken", BrokenEnv)):
    gymnasium.register(
        f"gagpo-test/{_name}-v0", f"{__name__}:{_kind.__name__}", disable_env_checker=True, order_enforce=False
    )
