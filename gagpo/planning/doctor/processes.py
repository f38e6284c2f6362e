"""Processes that run the doctor's checks, so that a check that crashes or hangs does not stop the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gagpo.base.child import END_SECONDS, Child
from gagpo.distributed.environment import ENVIRONMENT, PARENT
from gagpo.distributed.launch import free_port
from gagpo.planning.doctor.machine import Check, Finding, Machine, worst_of

START_SECONDS = 180.0  # to import torch from a cold disk, and for the ranks to meet
CHECK_SECONDS = 300.0
GRACE_SECONDS = 3.0  # for the other ranks to answer once one has failed: they may wait for it forever
POLL_SECONDS = 0.05
Answer = dict[str, Any]


def name_of(check: Check, count: int) -> str:
    """The name of a check in the report.

    >>> def check_log_probabilities(machine): ...
    >>> name_of(check_log_probabilities, 1), name_of(check_log_probabilities, 8)
    ('log probabilities', 'log probabilities of 8')
    """
    return check.__name__.removeprefix("check_").replace("_", " ") + (f" of {count}" if count > 1 else "")


def run_checks(machine: Machine, checks: Sequence[Check], count: int) -> Iterator[Finding]:
    """The finding of every check, run by ``count`` processes together.

    After a check that gave no finding, fresh processes run the rest. If they cannot be started, the rest is left out.
    """
    left = list(checks)
    while left:
        processes = CheckProcesses(machine, left, count)
        try:
            problem = processes.start()
            while left and not processes.broken:
                begun = time.monotonic()
                finding = Finding("failed", f"processes could not be started: {problem}") if problem else processes.finding()
                finding.name, finding.seconds = name_of(left.pop(0), count), time.monotonic() - begun
                yield finding
                if problem:
                    return
        finally:
            processes.kill()


class CheckProcesses:
    """``count`` processes that run ``checks`` in order.

    broken: a check gave no finding, so the processes cannot run another.
    """

    def __init__(self, machine: Machine, checks: Sequence[Check], count: int):
        self.count, self.broken = count, False
        self._machine, self._checks = machine, list(checks)
        self._folder = Path(tempfile.mkdtemp(prefix=f"processes-{count}-", dir=machine.folder))
        self._children: list[Child] = []

    def start(self) -> str:
        """Start the processes and wait until all are ready; return what went wrong, or an empty string."""
        machine = self._machine
        record = {name: getattr(machine, name) for name in ("device", "engine", "dtype", "processes")}
        record |= {"folder": str(machine.folder), "runs": str(machine.runs)}
        addresses = [f"{check.__module__}:{check.__name__}" for check in self._checks]
        request = json.dumps({"machine": record, "checks": addresses})
        shared = {"WORLD_SIZE": self.count, "LOCAL_WORLD_SIZE": self.count, "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": free_port(), PARENT: os.getpid(), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        ours = (*ENVIRONMENT, "LOCAL_WORLD_SIZE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        for rank in range(self.count):
            own = {**shared, "RANK": rank, "LOCAL_RANK": rank} if self.count > 1 else {}
            variables = {**inherited, **{name: str(value) for name, value in own.items()}}
            with self._log(rank).open("wb") as log:
                child = Child("gagpo.planning.doctor.rank:main", request, variables=variables, output=log)
                child.start()
            self._children.append(child)
        problems = self._problems(self._answers(START_SECONDS), START_SECONDS)
        return _first(problems)[0] if problems else ""

    def finding(self) -> Finding:
        """The finding of the next check, the worst of all ranks."""
        answers = self._answers(CHECK_SECONDS)
        problems = self._problems(answers, CHECK_SECONDS)
        if not problems:
            return worst_of([Finding(**answer["finding"]) for answer in answers if answer is not None])
        self.broken = True
        summary, hangs = _first(problems)
        advice = "it hangs in an exchange: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1" if hangs else ""
        values = {"problems": {str(rank): one for rank, one in enumerate(problems) if one}}
        return Finding("failed", summary, values, advice)

    def kill(self) -> None:
        """Kill the processes and everything that they started."""
        for child in self._children:
            child.close()
        self._children = []

    def _log(self, rank: int) -> Path:
        return self._folder / f"log-{rank}.txt"

    def _answers(self, seconds: float) -> list[Answer | None]:
        """The next answer of each rank; None for a rank that gave none in time."""
        found: list[Answer | None] = [None] * self.count
        until = time.monotonic() + seconds
        while None in found and (left := until - time.monotonic()) > 0:
            ranks = {
                child.pipe.socket: rank for rank, child in enumerate(self._children) if not found[rank] and child.pipe
            }
            for ready in select.select(list(ranks), [], [], left)[0]:
                answer = found[ranks[ready]] = _answer(self._children[ranks[ready]])
                if "finding" not in answer:
                    until = min(until, time.monotonic() + GRACE_SECONDS)
        return found

    def _problems(self, answers: list[Answer | None], seconds: float) -> list[str]:
        """Why each rank has no finding, empty for a rank that has one; an empty list if all have one."""
        problems = [self._problem(rank, answer, seconds) for rank, answer in enumerate(answers)]
        return problems if any(problems) else []

    def _problem(self, rank: int, answer: Answer | None, seconds: float) -> str:
        if answer is None:
            return f"{HANGS} in {seconds:.0f} s, {self._whereabouts(rank)}"
        if "ended" in answer:
            status = answer["ended"]
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            return f"{how}: {last_words(self._log(rank))}"
        return str(answer.get("error", ""))

    def _whereabouts(self, rank: int) -> str:
        """Where in the code a process hangs."""
        log = self._log(rank)
        before = log.stat().st_size
        process = self._children[rank].process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while log.stat().st_size == before and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return place_in(log.read_bytes()[before:].decode("utf-8", "replace"))


HANGS = "has not answered"


def _answer(child: Child) -> Answer:
    """The next answer of a process that has sent something or ended."""
    assert child.pipe is not None
    try:
        answer: Answer = json.loads(child.pipe.receive(END_SECONDS))
    except (EOFError, OSError):
        return {"ended": child.end(END_SECONDS)}
    return answer


def _first(problems: Sequence[str]) -> tuple[str, bool]:
    """The problem to report, a crash or an error before a rank that hangs, and whether it hangs."""
    first = min((rank for rank, one in enumerate(problems) if one), key=lambda rank: HANGS in problems[rank])
    who = f"rank {first} of {len(problems)}: " if len(problems) > 1 else ""
    return f"{who}{problems[first]}", HANGS in problems[first]


def place_in(trace: str) -> str:
    """The innermost frame of a stack that faulthandler printed, and the innermost one of this package.

    >>> place_in('  File "/t/dist.py", line 9 in all_reduce\\n  File "/x/gagpo/planning/a.py", line 3 in check')
    'in all_reduce (dist.py:9), from check (a.py:3)'
    """
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', trace)
    own = [frame for frame in frames if "gagpo" in Path(frame[0]).parts]
    chosen = list(dict.fromkeys([*frames[:1], *own[:1]]))
    words = [f"{name} ({Path(path).name}:{line})" for path, line, name in chosen]
    return "in " + ", from ".join(words) if words else "at an unknown place"


def last_words(log: Path) -> str:
    """The last lines of what a process printed, on one."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:] or "it printed nothing"
