"""Run the doctor's checks in processes of their own, so one that crashes or hangs does not stop the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gagpo.base.interpreter import module_command
from gagpo.distributed.environment import ENVIRONMENT, PARENT
from gagpo.distributed.launch import free_port
from gagpo.planning.doctor.machine import Check, Finding, Machine, worst_of
from gagpo.planning.doctor.rank import READY, answer_path

START_SECONDS = 180.0  # to import torch from a cold disk and connect the ranks
CHECK_SECONDS = 300.0
GRACE_SECONDS = 3.0  # for the other ranks after one has failed, because they may wait for it forever
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
    """Run every check in ``count`` processes together and yield its finding.

    After a check without a finding, new processes run the rest. If they cannot be started, the rest is left out.
    """
    left = list(checks)
    while left:
        processes = CheckProcesses(machine, left, count)
        try:
            problem = processes.start()
            while left and not processes.broken:
                start = time.monotonic()
                failed = Finding("failed", f"processes could not be started: {problem}")
                finding = failed if problem else processes.finding()
                finding.name, finding.seconds = name_of(left.pop(0), count), time.monotonic() - start
                yield finding
                if problem:
                    return
        finally:
            processes.kill()


class CheckProcesses:
    """``count`` processes that run ``checks`` in order.

    broken: a check gave no finding, so the processes cannot be used further.
    """

    def __init__(self, machine: Machine, checks: Sequence[Check], count: int):
        self.count, self.broken = count, False
        self._machine, self._checks = machine, list(checks)
        self._folder = Path(tempfile.mkdtemp(prefix=f"processes-{count}-", dir=machine.folder))
        self._running: list[subprocess.Popen[bytes]] = []
        self._done = 0

    def start(self) -> str:
        """Start the processes and wait until all are ready. Returns the problem, or an empty string."""
        machine = self._machine
        record = {name: getattr(machine, name) for name in ("device", "engine", "dtype", "processes")}
        record |= {"folder": str(machine.folder), "runs": str(machine.runs)}
        addresses = [f"{check.__module__}:{check.__name__}" for check in self._checks]
        request = json.dumps({"machine": record, "checks": addresses})
        (self._folder / "machine.json").write_text(request, encoding="utf-8")
        shared = {"WORLD_SIZE": self.count, "LOCAL_WORLD_SIZE": self.count, "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": free_port(), PARENT: os.getpid(), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        ours = (*ENVIRONMENT, "LOCAL_WORLD_SIZE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        for rank in range(self.count):
            variables = {**shared, "RANK": rank, "LOCAL_RANK": rank} if self.count > 1 else {}
            self._running.append(self._start(rank, {**inherited, **{k: str(v) for k, v in variables.items()}}))
        problems = self._problems(self._answers(READY, START_SECONDS), START_SECONDS)
        return _first(problems)[0] if problems else ""

    def finding(self) -> Finding:
        """The finding of the next check, merged over the ranks."""
        answers = self._answers(str(self._done), CHECK_SECONDS)
        self._done += 1
        problems = self._problems(answers, CHECK_SECONDS)
        if not problems:
            return worst_of([Finding(**answer["finding"]) for answer in answers if answer is not None])
        self.broken = True
        summary, hangs = _first(problems)
        advice = "it hangs in a collective: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1" if hangs else ""
        values = {"problems": {str(rank): one for rank, one in enumerate(problems) if one}}
        return Finding("failed", summary, values, advice)

    def kill(self) -> None:
        """Kill the processes and their children."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):  # may be stuck in the driver
                process.wait(5.0)
            assert process.stdin is not None
            process.stdin.close()
        self._running = []

    def _start(self, rank: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log(rank).open("wb") as file:
            return subprocess.Popen(
                module_command("gagpo.planning.doctor.rank", str(self._folder)),
                env=variables,
                stdin=subprocess.PIPE,  # closed when this process ends
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log(self, rank: int) -> Path:
        return self._folder / f"log-{rank}.txt"

    def _answers(self, number: str, seconds: float) -> list[Answer | None]:
        """The answer of each rank; None for a rank without an answer in time."""
        found: list[Answer | None] = [None] * self.count
        until = time.monotonic() + seconds
        while None in found and time.monotonic() < until:
            for rank, process in enumerate(self._running):
                if found[rank] is not None:
                    continue
                status, path = process.poll(), answer_path(self._folder, number, rank)
                if path.exists():
                    found[rank] = json.loads(path.read_text(encoding="utf-8"))
                elif status is not None:
                    found[rank] = {"ended": status}
                if "finding" not in (found[rank] or {"finding": None}):
                    until = min(until, time.monotonic() + GRACE_SECONDS)
            time.sleep(POLL_SECONDS)
        return found

    def _problems(self, answers: list[Answer | None], seconds: float) -> list[str]:
        """Why each rank has no finding (empty for a rank with one); an empty list if all have one."""
        problems = [self._problem(rank, answer, seconds) for rank, answer in enumerate(answers)]
        return problems if any(problems) else []

    def _problem(self, rank: int, answer: Answer | None, seconds: float) -> str:
        if answer is None:
            return f"{HANGS} in {seconds:.0f} s, {self._whereabouts(rank)}"
        if "ended" in answer:
            status = answer["ended"]
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            return f"{how}: {last_lines(self._log(rank))}"
        return str(answer.get("error", ""))

    def _whereabouts(self, rank: int) -> str:
        """The place in the code of a process that does not answer."""
        log = self._log(rank)
        before = log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._running[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + 1.0
        while log.stat().st_size == before and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        return innermost_frames(log.read_bytes()[before:].decode("utf-8", "replace"))


HANGS = "has not answered"


def _first(problems: Sequence[str]) -> tuple[str, bool]:
    """The problem to report, preferring a crash or error to a rank that hangs, and whether it is one that hangs."""
    first = min((rank for rank, one in enumerate(problems) if one), key=lambda rank: HANGS in problems[rank])
    who = f"rank {first} of {len(problems)}: " if len(problems) > 1 else ""
    return f"{who}{problems[first]}", HANGS in problems[first]


def innermost_frames(trace: str) -> str:
    """The innermost frame of a faulthandler trace, and the innermost frame of this package.

    >>> innermost_frames('  File "/t/dist.py", line 9 in all_reduce\\n  File "/x/gagpo/planning/a.py", line 3 in check')
    'in all_reduce (dist.py:9), from check (a.py:3)'
    """
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', trace)
    own = [frame for frame in frames if "gagpo" in Path(frame[0]).parts]
    chosen = list(dict.fromkeys([*frames[:1], *own[:1]]))
    words = [f"{name} ({Path(path).name}:{line})" for path, line, name in chosen]
    return "in " + ", from ".join(words) if words else "at an unknown place"


def last_lines(log: Path) -> str:
    """The last lines of a process's output, joined."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:] or "it printed nothing"
