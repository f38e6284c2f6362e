"""Run all checks of the doctor and report."""

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
    """Run every check. A check that raises, crashes or hangs has failed.

    learn: include the short training, which takes most of the time.
    report: called with each finding.
    processes: number of ranks, with a GPU each; several also run the checks of ``together``.
    runs: folder of runs, whose disk is checked.
    """
    if processes > 1 and ":" in device:
        raise InvalidArgument(f"{processes} processes take a GPU each: name the device cuda, not {device}")
    stages = [([check for check in alone if learn or check is not check_learning], 1)]
    if processes > 1:
        stages.append((list(together), processes))
    found = []
    with tempfile.TemporaryDirectory(prefix="gagpo-doctor-", ignore_cleanup_errors=True) as folder:
        machine = Machine(device, engine, dtype, Path(folder), runs, processes)
        for checks, count in stages:
            for finding in run_checks(machine, checks, count):
                found.append(finding)
                report(finding)
    return found


def names_with(findings: Sequence[Finding], verdict: Verdict) -> list[str]:
    """Names of the checks with this verdict."""
    return [finding.name for finding in findings if finding.verdict == verdict]


def conclusion(findings: Sequence[Finding]) -> str:
    """The last lines of the report."""
    verdicts: tuple[Verdict, ...] = ("skipped", "warning", "failed")
    names = {verdict: names_with(findings, verdict) for verdict in verdicts}
    lines = [f"{verdict}: {', '.join(some)}" for verdict, some in names.items() if some]
    return "\n".join([*lines, *([] if names["failed"] else ["no check failed"])])
