"""Prove an environment: does it keep the contract that training and evaluation rely on?

    for finding in check("gagpo/Math-v0"):  # or any other gymnasium id, or a function that builds an environment
        print(finding.name, finding.ok, finding.detail)

Every check runs, whatever the others found, and says what it saw.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium

from gagpo.base.errors import InvalidArgument
from gagpo.base.tables import Table
from gagpo.envs.base import Kwargs
from gagpo.envs.check.promises import PROMISES
from gagpo.envs.check.subject import Broken, NotJudged, Subject
from gagpo.envs.lookup import find_spec
from gagpo.envs.pool.wire import describe, plain


@dataclass
class Finding:
    """What one check saw. ``detail`` is one line: numbers when ``ok``, else what is wrong and where.

    judged: False where nothing can be said of this environment; ``detail`` then says why, and ``ok`` is True.
    """

    name: str
    ok: bool
    detail: str
    seconds: float
    judged: bool = True


def check(
    env: str | gymnasium.Env | Callable[[], gymnasium.Env],
    env_kwargs: Kwargs | None = None,
    episodes: int = 8,
    seed: int = 0,
    deadline: float = 300.0,
    only: Iterable[str] = (),
) -> list[Finding]:
    """Run every check (or ``only`` those named) on ``env``, with ``episodes`` episodes in each that plays.

    env: an id of any ``gymnasium`` environment, a function that builds one, or an environment itself, which is reset
    again and again and left open. One that names no tasks (``tasks(split)``) starts its episodes by seed, and what
    cannot be judged of it is said to be so. A check may take ``deadline`` seconds.

    Raises InvalidArgument for arguments that cannot be right, and UnknownEnvironment.
    """
    if episodes < 1:
        raise InvalidArgument(f"episodes must be at least 1, got {episodes}")
    wanted = set(only) or set(PROMISES)
    if unknown := sorted(wanted - set(PROMISES)):
        raise InvalidArgument(f"there is no check {unknown[0]!r}; choose among {', '.join(PROMISES)}")
    subject = _subject(env, plain(dict(env_kwargs or {}), "env_kwargs"), episodes, seed, deadline)
    findings = []
    for name, part in PROMISES.items():
        # Whatever a check raises is a finding; without a construction there is nothing else to find.
        if name not in wanted:
            continue
        begin = time.perf_counter()
        ok, judged = False, True
        try:
            with _time_limit(deadline):
                ok, detail = True, part(subject)
        except Broken as error:
            detail = str(error)
        except NotJudged as error:
            ok, judged, detail = True, False, f"not judged: {error}"
        except (Exception, SystemExit) as error:
            detail = describe(error)
        findings.append(Finding(name, ok, detail, time.perf_counter() - begin, judged))
        if name == "construction" and not ok:
            break
    return findings


def _subject(
    env: str | gymnasium.Env | Callable[[], gymnasium.Env],
    kwargs: Kwargs,
    episodes: int,
    seed: int,
    deadline: float,
) -> Subject:
    if isinstance(env, str):
        return Subject(env, find_spec(env), None, kwargs, episodes, seed, deadline)
    if kwargs:
        raise InvalidArgument("env_kwargs belong to an id; a function or an environment is taken as it is")
    if isinstance(env, gymnasium.Env):
        given: gymnasium.Env = env
        return Subject(type(given.unwrapped).__name__, None, lambda: _OpenWrapper(given), {}, episodes, seed, deadline)
    if not callable(env):
        raise InvalidArgument(f"env is an id, an environment or a function that builds one, got {type(env).__name__}")
    return Subject(getattr(env, "__name__", "environment"), None, env, {}, episodes, seed, deadline)


class _OpenWrapper(gymnasium.Wrapper):
    """An environment that belongs to the caller: closing this closes nothing."""

    def close(self) -> None:
        pass


def table(findings: list[Finding]) -> Table:
    """The findings as a table for the terminal."""
    rows = [
        ["?" if not one.judged else "ok" if one.ok else "NO", one.name, one.detail, f"{one.seconds:.1f}"]
        for one in findings
    ]
    styles = {"ok": "green", "NO": "bold red", "?": "yellow"}
    return Table(["", "check", "what was seen", "seconds"], rows, words=(0, 1, 2), styles=styles)


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
