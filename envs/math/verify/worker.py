"""A verifier process: it answers one comparison after another.

It limits its own CPU time, so what it answers does not depend on how busy the machine is. Its owner holds a deadline
over it and kills it when that passes.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gagpo.base.child import Pipe
from gagpo.envs.math.verify.compare import same
from gagpo.envs.math.verify.reading import Unreadable, read
from gagpo.envs.math.verify.symbolic import Unparsable, equal


class OutOfTime(BaseException):
    """Not an ``Exception``: computer algebra catches those wherever it tries something."""


def _alarm(number: int, frame: object) -> None:
    raise OutOfTime


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the body after ``seconds`` of CPU time; kill the process two seconds later.

    The kill is for code that never returns to the interpreter, such as the power of two huge integers.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 2, hard))
    signal.signal(signal.SIGPROF, _alarm)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def compare(gold: str, prediction: str, seconds: float) -> str:
    """The reason of the verdict: match, mismatch, unparsable or timeout."""
    try:
        with cpu_limit(seconds):
            return "match" if same(read(gold), read(prediction), equal) else "mismatch"
    except (Unparsable, Unreadable):
        return "unparsable"
    except (OutOfTime, MemoryError, RecursionError):
        return "timeout"
    except Exception:  # computer algebra failed: the answer was not understood
        return "unparsable"


def main(pipe: Pipe) -> None:
    """Answer requests ``(gold, prediction, seconds)`` until the other side closes the ``pipe``."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # nobody reads what the libraries print
    os.dup2(nowhere, 2)
    equal("x + 1", "1 + x")  # imports and warms up what takes seconds, before any deadline runs
    pipe.send("ready")
    with suppress(EOFError, OSError):
        while True:
            gold, prediction, seconds = pipe.receive()
            pipe.send(compare(gold, prediction, seconds))
