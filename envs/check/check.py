"""Prove an environment: does it keep the contract that training and evaluation rely on?

    for finding in check("gagpo/Math-v0"):
        print(finding.name, finding.ok, finding.detail)

Every check runs, whatever the others found, and says what it saw.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gagpo.envs.check.promises import PROMISES, Broken, Subject
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.lookup import find_spec
from gagpo.envs.pool.wire import describe, plain

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Finding:
    """What one check saw. ``detail`` is one line: numbers when ``ok``, else what is wrong and where."""

    name: str
    ok: bool
    detail: str
    seconds: float


def check(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 8,
    seed: int = 0,
    deadline: float = 300.0,
    only: Iterable[str] = (),
) -> list[Finding]:
    """Run every check (or ``only`` those named) on ``env_id``, with ``episodes`` tasks in each that plays.

    A check may take ``deadline`` seconds. Raises ValueError for arguments that cannot be right, an unknown id among
    them.
    """
    if episodes < 1:
        raise InvalidArgument(f"episodes must be at least 1, got {episodes}")
    wanted = set(only) or set(PROMISES)
    if unknown := sorted(wanted - set(PROMISES)):
        raise InvalidArgument(f"there is no check {unknown[0]!r}; choose among {', '.join(PROMISES)}")
    subject = Subject(find_spec(env_id), env_id, plain(dict(env_kwargs or {}), "env_kwargs"), episodes, seed, deadline)
    findings = []
    for name, part in PROMISES.items():
        if name not in wanted:
            continue
        begin = time.perf_counter()
        try:
            with _time_limit(deadline):
                ok, detail = True, part(subject)
        except Broken as error:
            ok, detail = False, str(error)
        except (Exception, SystemExit) as error:
            ok, detail = False, describe(error)
        findings.append(Finding(name, ok, detail, time.perf_counter() - begin))
        if name == "construction" and not ok:
            break
    return findings


def table(findings: list[Finding]) -> Table:
    """The findings as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    result = Table("", "check", "what was seen", "seconds")
    for finding in findings:
        mark = Text("ok", "green") if finding.ok else Text("NO", "bold red")
        result.add_row(mark, finding.name, Text(finding.detail), f"{finding.seconds:.1f}")
    return result


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after ``seconds``; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
