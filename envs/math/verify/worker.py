"""A verifier process, which runs one comparison after another.

It limits its own CPU time, so verdicts do not depend on the machine's load. Its owner kills it at a deadline.
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
from gagpo.envs.math.verify.spelling.units import in_kelvin
from gagpo.envs.math.verify.symbolic import Unparsable, equal


class OutOfTime(BaseException):
    """Not an ``Exception``, because computer algebra catches those."""


def _alarm(number: int, frame: object) -> None:
    raise OutOfTime


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the body after ``seconds`` of CPU time; kill the process two seconds later.

    The kill is for code that does not return to the interpreter, such as a power of huge integers. Afterwards the
    process has its former limit: one left behind would kill it without a word, seconds of CPU time later.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    previous = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, previous[1]))
    handler = signal.signal(signal.SIGPROF, _alarm)
    # It repeats every 0.2 seconds, because code with a bare "except:" swallows an alarm.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_CPU, previous)


def compare(gold: str, prediction: str, seconds: float) -> str:
    """The reason of the verdict: match, mismatch, unparsable or timeout."""
    try:
        with cpu_limit(seconds):
            gold_answer, answer = read(in_kelvin(gold, gold)), read(in_kelvin(prediction, gold))
            return "match" if same(gold_answer, answer, equal) else "mismatch"
    except (Unreadable, Unparsable):
        return "unparsable"
    except (OutOfTime, MemoryError, RecursionError):
        return "timeout"
    except Exception:  # computer algebra failed
        return "unparsable"


def main(pipe: Pipe) -> None:
    """Answer requests ``(gold, prediction, seconds)`` until the other side closes the ``pipe``."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # discards what the libraries print
    os.dup2(nowhere, 2)
    equal("x + 1", "1 + x")  # imports take seconds, so warm up before any deadline runs
    pipe.send("ready")
    with suppress(EOFError, OSError):
        while True:
            gold, prediction, seconds = pipe.receive()
            pipe.send(compare(gold, prediction, seconds))
