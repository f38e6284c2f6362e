"""Check whether an environment keeps the contract that training and evaluation rely on.

    for result in check("gagpo/Math-v0"):
        print(result.name, result.ok, result.detail)

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
from gagpo.base.row_files import BadRow, DataMissing
from gagpo.base.tables import Table
from gagpo.envs.arguments import require_arguments
from gagpo.envs.base import Kwargs
from gagpo.envs.check.promises import PROMISES
from gagpo.envs.check.subject import CheckFailed, CheckWarning, NotApplicable, Subject
from gagpo.envs.pool.wire import describe, plain

LOGGER = "gagpo.envs"


@dataclass
class CheckResult:
    """The result of one check.

    detail: one line: numbers if ``ok``, else what is wrong and where.
    judged: False if the check does not apply to this environment; ``detail`` then gives the reason, and ``ok`` is True.
    warning: the environment passes, but results may mislead; ``detail`` says why, and ``ok`` is True.
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
) -> list[CheckResult]:
    """Run the checks of ``env_id``.

    episodes: number of episodes in each check that runs some.
    deadline: time limit of each check, in seconds.
    only: names of the checks to run; by default, all.

    Raises:
        InvalidArgument: invalid arguments, of this function or of the environment.
        MissingPackage: the environment needs a package that is not installed.
        BadRow, DataMissing: the environment's data cannot be read.
        UnknownEnvironment: the id is not registered.
    """
    if episodes < 1:
        raise InvalidArgument(f"episodes must be at least 1, got {episodes}", key="episodes")
    names = set(only) or set(PROMISES)
    unknown_names = sorted(names - set(PROMISES))
    if unknown_names:
        raise InvalidArgument(f"unknown check {unknown_names[0]!r}", advice=f"choose from {', '.join(PROMISES)}")
    require_arguments(env_id, env_kwargs)
    subject = Subject(env_id, plain(dict(env_kwargs or {}), "env_kwargs"), episodes, seed, deadline)
    results = []
    with _recorded_warnings() as warnings:
        for name, promise in PROMISES.items():
            if name in names:
                results.append(_run_check(name, promise, subject))
                if name == "construction" and not results[-1].ok:
                    break
    _add_warnings(results, warnings)
    return results


def _run_check(name: str, promise: Callable[[Subject], str], subject: Subject) -> CheckResult:
    """The result of one check. Any exception that the environment raises makes it fail."""
    result = CheckResult(name, ok=True, detail="", seconds=0.0)
    start_time = time.perf_counter()
    try:
        with _time_limit(subject.deadline):
            result.detail = promise(subject)
    except CheckFailed as error:
        result.ok = False
        result.detail = str(error)
    except CheckWarning as error:
        result.warning = True
        result.detail = str(error)
    except NotApplicable as error:
        result.judged = False
        result.detail = f"not judged: {error}"
    except (MissingPackage, BadRow, DataMissing):  # every other check would only repeat it
        raise
    except (Exception, SystemExit) as error:
        if is_termination(error):
            raise
        result.ok = False
        result.detail = describe(error)
    result.seconds = time.perf_counter() - start_time
    return result


@contextmanager
def _recorded_warnings() -> Iterator[list[str]]:
    """The warnings that the environments of this package log in the block, such as the rows that they skip."""
    messages: list[str] = []

    class MessageHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = MessageHandler(logging.WARNING)
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)


def _add_warnings(results: list[CheckResult], messages: list[str]) -> None:
    """Add the messages to the result about tasks."""
    for result in results:
        if result.name == "tasks" and result.ok and messages:
            result.warning = True
            result.detail = "; ".join([result.detail, *dict.fromkeys(messages)])


def table(results: list[CheckResult]) -> Table:
    """The results as a table for the terminal."""
    rows = [[result.verdict, result.name, result.detail, f"{result.seconds:.1f}"] for result in results]
    styles = {"ok": "green", "NO": "bold red", "!": "bold yellow", "?": "yellow"}
    return Table(["", "check", "what was seen", "seconds"], rows, words=(0, 1, 2), styles=styles)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after ``seconds``.

    An alarm signal interrupts even an environment that waits in a system call. Python delivers signals to the main
    thread only, so there is no limit in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
