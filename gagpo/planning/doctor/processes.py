"""The processes that take the doctor's steps: started, told what to do, waited for, and ended where they hang."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gagpo.base.interpreter import module_command
from gagpo.distributed.environment import ENVIRONMENT, PARENT
from gagpo.distributed.launch import free_port
from gagpo.planning.doctor.machine import DoctorFinding, Machine, worst_of
from gagpo.planning.doctor.rank import answer_path
from gagpo.planning.doctor.steps import Step

START_SECONDS = 180.0
GRACE_SECONDS = 3.0
"""That the others have to answer once a rank has failed; they may wait for it for ever."""

KILL_SECONDS = 5.0
POLL_SECONDS = 0.05


class NotStarted(Exception):
    """Processes that cannot take any step; the message says why."""


@dataclass
class _Process:
    process: subprocess.Popen[str]
    log: Path


class StepProcesses:
    """``world`` processes for ``steps`` that they take together, one after the other; a context that ends them.

    They are started with the first step, and again after one that failed or hung: what it left is not met by the next.
    Once they could not be started, every further step raises :class:`NotStarted`.
    """

    def __init__(self, machine: Machine, world: int, steps: Sequence[Step] = ()):
        self.machine, self.world = machine, world
        self._modules = sorted({step.check.partition(":")[0] for step in steps})
        self._running: list[_Process] = []
        self._number = 0
        self.refused = ""

    def __enter__(self) -> StepProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, step: Step, seconds: float) -> DoctorFinding:
        """What ``step`` found on all of them, within ``seconds``; raises :class:`NotStarted`."""
        until = time.monotonic() + seconds
        if not self._running:
            self._start(min(START_SECONDS, seconds))
        self._number += 1
        order = json.dumps({"number": self._number, "step": vars(step)})
        for one in self._running:
            self._tell(one, order)
        limit = min(step.seconds, until - time.monotonic())
        answers = self._answers(self._number, limit)
        problems = [self._problem(rank, answer, limit) for rank, answer in enumerate(answers)]
        if any(problems):
            self._kill()
            return _failed(step, problems)
        found = [DoctorFinding(**answer["finding"]) for answer in answers if answer is not None]
        finding = worst_of(found)
        finding.name = step.name
        return finding

    def close(self) -> None:
        """End the processes: in order where they can, else by force."""
        for one in self._running:
            self._tell(one, "null")
        until = time.monotonic() + KILL_SECONDS
        while any(one.process.poll() is None for one in self._running) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self._kill()

    # Processes --------------------------------------------------------------------------------------------------------

    def _start(self, seconds: float) -> None:
        if self.refused:
            raise NotStarted(self.refused)
        self._number = 0
        record: dict[str, Any] = {
            name: getattr(self.machine, name) for name in ("device", "engine", "dtype", "folder", "runs")
        }
        folder = Path(tempfile.mkdtemp(prefix=f"processes-{self.world}-", dir=self.machine.folder))
        record |= {"folder": str(folder), "runs": str(self.machine.runs), "processes": self.machine.processes}
        about = {"machine": record, "modules": self._modules}
        (folder / "machine.json").write_text(json.dumps(about), encoding="utf-8")
        self._place = folder
        shared = {"WORLD_SIZE": self.world, "LOCAL_WORLD_SIZE": self.world, "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": free_port(), PARENT: os.getpid(), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        ours = (*ENVIRONMENT, "LOCAL_WORLD_SIZE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        for rank in range(self.world):
            variables = {**shared, "RANK": rank, "LOCAL_RANK": rank} if self.world > 1 else {}
            self._running.append(self._begun(rank, {**inherited, **{k: str(v) for k, v in variables.items()}}))
        answers = self._answers(0, seconds)
        problems = [self._problem(rank, answer, seconds) for rank, answer in enumerate(answers)]
        if any(problems):
            self._kill()
            self.refused = _failed(Step("start", ""), problems).summary
            raise NotStarted(self.refused)

    def _begun(self, rank: int, variables: dict[str, str]) -> _Process:
        log = self._place / f"log-{rank}.txt"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                module_command("gagpo.planning.doctor.rank", str(self._place)),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # what it starts itself ends with it
            )
        return _Process(process, log)

    def _tell(self, one: _Process, line: str) -> None:
        assert one.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: whoever waits for its answer sees that
            one.process.stdin.write(line + "\n")
            one.process.stdin.flush()

    def _kill(self) -> None:
        for one in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)  # its own session: with what it has started
        until = time.monotonic() + KILL_SECONDS
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the driver holds cannot be waited for
                one.process.wait(max(0.0, until - time.monotonic()))
            assert one.process.stdin is not None
            with contextlib.suppress(OSError):
                one.process.stdin.close()
        self._running = []

    # Answers ----------------------------------------------------------------------------------------------------------

    def _answers(self, number: int, seconds: float) -> list[dict[str, Any] | None]:
        """The answer of each rank; None of one that has not given any in time."""
        found: list[dict[str, Any] | None] = [None] * self.world
        until = time.monotonic() + seconds
        while None in found and time.monotonic() < until:
            for rank, one in enumerate(self._running):
                if found[rank] is not None:
                    continue
                ended = one.process.poll() is not None
                path = answer_path(self._place, number, rank)
                if path.exists():
                    found[rank] = json.loads(path.read_text(encoding="utf-8"))
                elif ended:
                    found[rank] = {"ended": one.process.returncode}
                if "finding" not in (found[rank] or {"finding": None}):
                    until = min(until, time.monotonic() + GRACE_SECONDS)
            time.sleep(POLL_SECONDS)
        return found

    def _problem(self, rank: int, answer: dict[str, Any] | None, seconds: float) -> str:
        """Why a rank has found nothing; empty where it has."""
        if answer is None:
            return f"has not answered in {seconds:.0f} s, {self._whereabouts(rank)}"
        if "ended" in answer:
            status = answer["ended"]
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            return f"{how}: {last_words(self._running[rank].log)}"
        return str(answer.get("error", ""))

    def _whereabouts(self, rank: int) -> str:
        """Where in the code a process is that does not answer."""
        one = self._running[rank]
        before = one.log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.process.pid, signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while one.log.stat().st_size == before and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        with one.log.open(encoding="utf-8", errors="replace") as file:
            file.seek(before)
            return place_in(file.read())


def _failed(step: Step, problems: list[str]) -> DoctorFinding:
    """A step that some of the processes could not take; the first that said why comes first."""
    waiting = "has not answered"
    first = min((rank for rank, one in enumerate(problems) if one), key=lambda rank: waiting in problems[rank])
    who = f"rank {first} of {len(problems)}: " if len(problems) > 1 else ""
    advice = "it hangs in an exchange: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1" if waiting in problems[first] else ""
    values = {"problems": {str(rank): one for rank, one in enumerate(problems) if one}}
    return DoctorFinding(step.name, "failed", f"{who}{problems[first]}", values, advice)


def place_in(trace: str) -> str:
    """The innermost frame of a stack that faulthandler printed, and the innermost one of this package.

    >>> place_in('  File "/t/dist.py", line 9 in all_reduce\\n  File "/x/gagpo/planning/a.py", line 3 in check')
    'in all_reduce (dist.py:9), from check (a.py:3)'
    """
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', trace)
    own = [frame for frame in frames if "gagpo" in Path(frame[0]).parts]
    chosen = list(dict.fromkeys([*frames[:1], *own[:1]]))
    words = [f"{name} ({Path(path).name}:{line})" for path, line, name in chosen]
    return "in " + ", from ".join(words) if words else "and does not say where it is"


def last_words(log: Path) -> str:
    """The last lines of what a process printed, on one."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:] or "it has printed nothing"
