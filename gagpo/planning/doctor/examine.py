"""The examination: every check in turn, whatever the others found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gagpo.base.errors import InvalidArgument
from gagpo.planning.doctor.alone import ALONE, check_learning
from gagpo.planning.doctor.machine import Check, Finding, Machine, Verdict
from gagpo.planning.doctor.processes import run_checks
from gagpo.planning.doctor.together import TOGETHER


def examine(
    device: str = "cpu",
    engine: str = "transformers",
    dtype: str = "float32",
    learn: bool = True,
    report: Callable[[Finding], None] = lambda _: None,
    *,
    processes: int = 1,
    runs: Path = Path("runs"),
    alone: Sequence[Check] = ALONE,
    together: Sequence[Check] = TOGETHER,
) -> list[Finding]:
    """Run every check. One that raises, crashes or hangs has failed.

    learn: also run the short training, which takes most of the time.
    report: called with each finding.
    processes: ranks that the machine is to train with, a GPU each; for several, all ranks run ``together`` too.
    runs: where run folders will be written.
    """
    if processes > 1 and ":" in device:
        raise InvalidArgument(f"{processes} processes take a GPU each: name the device cuda, not {device}")
    wanted = [check for check in alone if learn or check is not check_learning]
    found = []
    with tempfile.TemporaryDirectory(prefix="gagpo-doctor-", ignore_cleanup_errors=True) as folder:
        machine = Machine(device, engine, dtype, Path(folder), runs, processes)
        for checks, count in ((wanted, 1), (together, processes)):
            if count == 1 and checks is together:
                continue
            for finding in run_checks(machine, checks, count):
                found.append(finding)
                report(finding)
    return found


def of_verdict(findings: Sequence[Finding], verdict: Verdict) -> list[str]:
    """Names of the checks with this verdict."""
    return [finding.name for finding in findings if finding.verdict == verdict]


def conclusion(findings: Sequence[Finding]) -> str:
    """The last lines of the report."""
    shown: tuple[Verdict, ...] = ("skipped", "warning", "failed")
    named = {verdict: of_verdict(findings, verdict) for verdict in shown}
    lines = [f"{verdict}: {', '.join(names)}" for verdict, names in named.items() if names]
    return "\n".join([*lines, *([] if named["failed"] else ["no check failed"])])
