"""The processes that take the doctor's steps: started, told what to do, waited for, and ended where they hang."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gagpo.base.child import Child
from gagpo.distributed.environment import ENVIRONMENT, PARENT
from gagpo.distributed.launch import free_port
from gagpo.planning.doctor.machine import DoctorFinding, Machine, worst_of
from gagpo.planning.doctor.steps import Step

START_SECONDS = 180.0
GRACE_SECONDS = 3.0
"""That the others have to answer once a rank has failed; they may wait for it for ever."""

CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.05
RANK = "gagpo.planning.doctor.rank:main"


class NotStarted(Exception):
    """Processes that cannot take any step; the message says why."""


@dataclass
class _Rank:
    child: Child
    log: Path


class StepProcesses:
    """``world`` processes for ``steps`` that they take together, one after the other; a context that ends them.

    They are started with the first step, and again after one that failed or hung, so the next step meets nothing that
    it left. Once they could not be started, every further step raises :class:`NotStarted`.
    """

    def __init__(self, machine: Machine, world: int, steps: Sequence[Step] = ()):
        self.machine, self.world = machine, world
        self._modules = sorted({step.check.partition(":")[0] for step in steps})
        self._running: list[_Rank] = []
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
        for one in self._running:
            tell(one.child, vars(step))
        limit = min(step.seconds, until - time.monotonic())
        answers = self._answers(limit)
        problems = [self._problem(rank, answer, limit) for rank, answer in enumerate(answers)]
        if any(problems):
            self.close(wait=0.0)
            return _failed(step, problems)
        found = [DoctorFinding(**answer["finding"]) for answer in answers if answer is not None]
        finding = worst_of(found)
        finding.name = step.name
        return finding

    def close(self, wait: float = CLOSE_SECONDS) -> None:
        """End the processes: by themselves if they can within ``wait`` seconds, else by force."""
        until = time.monotonic() + wait
        for one in self._running:
            tell(one.child, None)
        for one in self._running:
            one.child.end(max(0.0, until - time.monotonic()))
        self._running = []

    # Processes --------------------------------------------------------------------------------------------------------

    def _start(self, seconds: float) -> None:
        if self.refused:
            raise NotStarted(self.refused)
        names = ("device", "engine", "dtype", "processes")
        record: dict[str, Any] = {name: getattr(self.machine, name) for name in names}
        folder = Path(tempfile.mkdtemp(prefix=f"processes-{self.world}-", dir=self.machine.folder))
        record |= {"folder": str(folder), "runs": str(self.machine.runs)}
        shared = {"WORLD_SIZE": self.world, "LOCAL_WORLD_SIZE": self.world, "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": free_port(), PARENT: os.getpid(), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        ours = (*ENVIRONMENT, "LOCAL_WORLD_SIZE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        for rank in range(self.world):
            variables = {**shared, "RANK": rank, "LOCAL_RANK": rank} if self.world > 1 else {}
            log = folder / f"log-{rank}.txt"
            with log.open("w", encoding="utf-8") as file:
                child = Child(RANK, variables={**inherited, **{k: str(v) for k, v in variables.items()}}, output=file)
                child.start()
            self._running.append(_Rank(child, log))
            tell(child, {"machine": record, "modules": self._modules})
        answers = self._answers(seconds)
        problems = [self._problem(rank, answer, seconds) for rank, answer in enumerate(answers)]
        if any(problems):
            self.close(wait=0.0)
            self.refused = _failed(Step("start", ""), problems).summary
            raise NotStarted(self.refused)

    # Answers ----------------------------------------------------------------------------------------------------------

    def _answers(self, seconds: float) -> list[dict[str, Any] | None]:
        """The answer of each rank; None for one that did not answer in time."""
        found: list[dict[str, Any] | None] = [None] * self.world
        until = time.monotonic() + seconds
        pipes = {rank: one.child.start() for rank, one in enumerate(self._running)}
        while pipes and (left := until - time.monotonic()) > 0:
            sockets = [pipe.socket for pipe in pipes.values()]
            ready = select.select(sockets, [], [], left)[0]
            for rank in [rank for rank, pipe in pipes.items() if pipe.socket in ready]:
                try:
                    found[rank] = answer = json.loads(pipes[rank].receive(GRACE_SECONDS))
                except (EOFError, OSError):
                    found[rank] = answer = {"ended": self._running[rank].child.end(GRACE_SECONDS)}
                del pipes[rank]
                if "finding" not in answer:
                    until = min(until, time.monotonic() + GRACE_SECONDS)
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
        if one.child.process is not None:
            with suppress(ProcessLookupError):
                os.kill(one.child.process, signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while one.log.stat().st_size == before and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        with one.log.open(encoding="utf-8", errors="replace") as file:
            file.seek(before)
            return place_in(file.read())


def tell(child: Child, message: object) -> None:
    """Send a message to a child; whoever waits for its answer sees that it has ended."""
    if child.pipe is not None:
        with suppress(OSError):
            child.pipe.send(message, GRACE_SECONDS)


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
