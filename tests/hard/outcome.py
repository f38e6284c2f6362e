"""One attempt at something that may go wrong, in a process of its own, and what came of it.

Three things may come of reading a damaged file: nothing (the damage did not matter), one line that a user can act on,
or a fault of ours: a traceback, a message of many lines, a crash, a hang.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from gagpo.base import guard
from gagpo.base.errors import GagpoError

FINE, REFUSED, FAULT = "fine", "refused", "fault"
_MEMORY_MB = 4096
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Outcome:
    """verdict: FINE, REFUSED or FAULT. words: what was returned, the message, or what went wrong."""

    verdict: str
    words: str


@dataclass
class Tally:
    """What came of one kind of attempt. ``faults``: how each can be repeated, and what was seen."""

    name: str
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: {FINE: 0, REFUSED: 0, FAULT: 0})
    faults: list[tuple[str, str]] = field(default_factory=list)

    def add(self, case: str, outcome: Outcome) -> None:
        self.counts[outcome.verdict] += 1
        if outcome.verdict == FAULT:
            self.faults.append((case, outcome.words))


def attempt(act: Callable[[], str | None], seconds: int = 60, patience: float = 20.0) -> Outcome:
    """Call ``act`` in a forked process and judge what becomes of it.

    It is a hang after ``seconds`` of processor time, so that a busy machine makes no faults, and in any case after
    ``patience`` times as long by the clock.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as screen:
        actual, expected = os.pipe()
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            os.close(actual)
            _play(act, seconds, expected, screen.fileno())
        os.close(expected)
        with suppress(OSError):
            os.setpgid(process, process)
        try:
            messages, in_time = _read_all(actual, time.monotonic() + patience * seconds)
        finally:
            os.close(actual)
            code = guard.end(process)
        if messages:
            return Outcome(*json.loads(messages))
        screen.seek(0)
        last = " | ".join(screen.read().strip().splitlines()[-3:])
        if code == -signal.SIGXCPU or not in_time:
            return Outcome(FAULT, f"hangs for more than {seconds} s: {last}")
        return Outcome(FAULT, f"exit status {code}: {last}")


def command(*words: str) -> None:
    """Run ``gagpo WORDS`` in this process, which then ends: for use inside of :func:`attempt`."""
    from gagpo.cli.main import main

    sys.argv = ["gagpo", *words]
    main()


def _read_all(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """All that is written to ``pipe`` until it closes, and whether that was before the ``deadline``."""
    messages = b""
    while (remaining := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], remaining)[0]:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return messages, True
            messages += chunk
    return messages, False


def _play(act: Callable[[], str | None], seconds: int, pipe: int, screen: int) -> None:
    """The life of the forked process; never returns."""
    outcome = Outcome(FAULT, "ended without a word")
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(screen, 1)
        os.dup2(screen, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (whatever it was before, it lives as long as we)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        guard.limit_memory(_MEMORY_MB)
        outcome = Outcome(FINE, act() or "")
    except (GagpoError, OSError) as error:  # what the command line shows as one line
        outcome = _judge_message(str(error))
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        outcome = _judge_status(end.code, screen)
    except BaseException:
        outcome = Outcome(FAULT, " | ".join(line.strip() for line in traceback.format_exc().splitlines()[-3:]))
    finally:
        with suppress(OSError):
            os.write(pipe, json.dumps([outcome.verdict, outcome.words[:_LONGEST_MESSAGE]]).encode())
        os._exit(0)


def _judge_message(message: str) -> Outcome:
    tokens = " ".join(message.split())
    if not tokens:
        return Outcome(FAULT, "an error without a message")
    if len(tokens) > _LONGEST_MESSAGE:
        return Outcome(FAULT, f"a message of {len(tokens)} characters: {tokens[:200]}")
    return Outcome(REFUSED, tokens)


def _judge_status(code: object, screen: int) -> Outcome:
    if code in (0, None):
        return Outcome(FINE, "")
    os.lseek(screen, 0, os.SEEK_SET)
    lines = os.read(screen, 1 << 20).decode(errors="replace").strip().splitlines()
    if code == 2 and lines and lines[-1].startswith("gagpo: ") and not any("Traceback" in line for line in lines):
        return _judge_message(lines[-1])
    return Outcome(FAULT, f"exit status {code}: {' | '.join(lines[-3:])}")
