"""Check whether an environment keeps the contract that training and evaluation rely on.

    for finding in check("gagpo/Math-v0"):
        print(finding.name, finding.ok, finding.detail)

Every check runs, even if others fail.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument, MissingPackage, is_termination
from gagpo.base.tables import Table
from gagpo.envs.arguments import require_arguments
from gagpo.envs.base import Kwargs
from gagpo.envs.check.promises import PROMISES
from gagpo.envs.check.subject import Broken, Doubtful, NotJudged, Subject
from gagpo.envs.pool.wire import describe, plain

LOGGER = "gagpo.envs"


@dataclass
class Finding:
    """The result of one check.

    detail: one line: numbers if ``ok``, else what is wrong and where.
    judged: False if the check does not apply to this environment; ``detail`` then gives the reason, and ``ok`` is True.
    warning: the contract is kept, but a result may not mean what it seems to; ``detail`` explains, and ``ok`` is True.
    """

    name: str
    ok: bool
    detail: str
    seconds: float
    judged: bool = True
    warning: bool = False

    @property
    def verdict(self) -> str:
        """``ok``, ``NO``, ``!`` for a warning, or ``?`` if the check does not apply."""
        if not self.ok:
            return "NO"
        if self.warning:
            return "!"
        return "ok" if self.judged else "?"


def check(
    env_id: str,
    env_kwargs: Kwargs | None = None,
    episodes: int = 8,
    seed: int = 0,
    deadline: float = 300.0,
    only: Iterable[str] = (),
) -> list[Finding]:
    """Run the checks of ``env_id``.

    episodes: number of episodes in each check that plays.
    deadline: time limit of each check, in seconds.
    only: names of the checks to run; by default, all.

    Raises:
        InvalidArgument: invalid arguments, of this function or of the environment.
        MissingPackage: the environment needs a package that is not installed.
        UnknownEnvironment: the id is not registered.
    """
    if episodes < 1:
        raise InvalidArgument(f"episodes must be at least 1, got {episodes}")
    wanted = set(only) or set(PROMISES)
    if unknown := sorted(wanted - set(PROMISES)):
        raise InvalidArgument(f"unknown check {unknown[0]!r}; choose from {', '.join(PROMISES)}")
    require_arguments(env_id, env_kwargs)
    subject = Subject(env_id, plain(dict(env_kwargs or {}), "env_kwargs"), episodes, seed, deadline)
    findings = []
    with _remembering_warnings() as warnings:
        for name, promise in PROMISES.items():
            if name in wanted:
                findings.append(_examined(name, promise, subject))
                if name == "construction" and not findings[-1].ok:
                    break
    _add_warnings(findings, warnings)
    return findings


def _examined(name: str, promise: Callable[[Subject], str], subject: Subject) -> Finding:
    """The result of one check: any exception of the environment is a finding."""
    begin = time.perf_counter()
    ok = warning = False
    judged = True
    try:
        with _time_limit(subject.deadline):
            ok, detail = True, promise(subject)
    except Broken as error:
        detail = str(error)
    except Doubtful as error:
        ok, warning, detail = True, True, str(error)
    except NotJudged as error:
        ok, judged, detail = True, False, f"not judged: {error}"
    except MissingPackage:
        raise
    except (Exception, SystemExit) as error:
        if is_termination(error):
            raise
        ok, detail = False, describe(error)
    return Finding(name, ok, detail, time.perf_counter() - begin, judged, warning)


@contextmanager
def _remembering_warnings() -> Iterator[list[str]]:
    """The warnings that the environments of this package log in the block, such as the rows that they skip."""
    messages: list[str] = []

    class Remembering(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Remembering(logging.WARNING)
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)


def _add_warnings(findings: list[Finding], messages: list[str]) -> None:
    """Add them to the finding about tasks."""
    for finding in findings:
        if finding.name == "tasks" and finding.ok and messages:
            finding.warning = True
            finding.detail = "; ".join([finding.detail, *dict.fromkeys(messages)])


def table(findings: list[Finding]) -> Table:
    """The findings as a table for the terminal."""
    rows = [[found.verdict, found.name, found.detail, f"{found.seconds:.1f}"] for found in findings]
    styles = {"ok": "green", "NO": "bold red", "!": "bold yellow", "?": "yellow"}
    return Table(["", "check", "what was seen", "seconds"], rows, words=(0, 1, 2), styles=styles)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after ``seconds``; has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
