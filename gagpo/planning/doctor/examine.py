"""The examination: every step in turn, each with a deadline, whatever becomes of those before it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from gagpo.base.errors import InvalidArgument
from gagpo.planning.doctor.machine import DoctorFinding, Machine, Verdict, left_out
from gagpo.planning.doctor.processes import NotStarted, StepProcesses
from gagpo.planning.doctor.steps import Step, steps_for

Report = Callable[[DoctorFinding], None]


def examine(
    device: str = "cpu",
    engine: str = "transformers",
    dtype: str = "float32",
    learn: bool = True,
    report: Report | None = None,
    *,
    processes: int = 1,
    runs: Path = Path("runs"),
    minutes: float = 10.0,
    steps: Sequence[Step] | None = None,
) -> list[DoctorFinding]:
    """Every step in turn; ``report`` hears of each as it is done. One that raises, crashes or hangs has failed.

    learn: also the short run, which takes most of the time of one process. processes: ranks that the machine is to
    train with, on a card each. runs: where run folders will lie. minutes: for all; steps that begin later are left out.
    """
    if processes < 1 or minutes <= 0:
        raise InvalidArgument(f"processes and minutes are positive, got {processes} and {minutes}")
    if processes > 1 and ":" in device:
        raise InvalidArgument(f"{processes} processes take a card each: name the device cuda, not {device}")
    until = time.monotonic() + 60 * minutes
    found = []
    with tempfile.TemporaryDirectory(prefix="gagpo-doctor-", ignore_cleanup_errors=True) as folder:
        machine = Machine(device, engine, dtype, Path(folder), runs, processes)
        with ExitStack() as running:
            crews: dict[int, StepProcesses] = {}
            wanted = steps_for(processes, learn) if steps is None else steps
            for step in wanted:
                world = processes if step.together else 1
                if world not in crews:
                    # Nobody else holds memory of a card while it is measured.
                    running.close()
                    crews = {world: running.enter_context(StepProcesses(machine, world, _of(wanted, step)))}
                begun = time.monotonic()
                finding = _taken(crews[world], step, until - begun, minutes)
                finding.seconds = time.monotonic() - begun
                found.append(finding)
                if report:
                    report(finding)
    return found


def _of(steps: Sequence[Step], step: Step) -> list[Step]:
    """The steps that the same processes take."""
    return [one for one in steps if one.together == step.together]


def _taken(crew: StepProcesses, step: Step, left: float, minutes: float) -> DoctorFinding:
    if left <= 0:
        return left_out(step.name, f"the {minutes:g} minutes are over: say --minutes {2 * minutes:g}")
    refused = crew.refused
    try:
        return crew.take(step, left)
    except NotStarted as error:
        if refused:
            return left_out(step.name, "its processes could not be started, see above")
        return DoctorFinding(step.name, "failed", f"its processes could not be started: {error}")


def of_verdict(findings: Sequence[DoctorFinding], verdict: Verdict) -> list[str]:
    """Names of the steps that ended so."""
    return [finding.name for finding in findings if finding.verdict == verdict]


def conclusion(findings: Sequence[DoctorFinding]) -> str:
    """The last lines of the report."""
    shown: tuple[Verdict, ...] = ("left out", "warning", "failed")
    named = {verdict: of_verdict(findings, verdict) for verdict in shown}
    lines = [f"{verdict}: {', '.join(names)}" for verdict, names in named.items() if names]
    return "\n".join([*lines, *([] if named["failed"] else ["all is well"])])
