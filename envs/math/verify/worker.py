"""What runs inside a verifier process: one comparison per request, as a worker of an environment pool.

It bounds its own processor time and memory, so that what it reports does not depend on how busy the machine is; the
pool holds a wall-clock deadline over it and kills it when that passes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import gymnasium

from gagpo.envs.base import Info
from gagpo.envs.math.verify.compare import same
from gagpo.envs.math.verify.reading import Unreadable, read
from gagpo.envs.math.verify.symbolic import Unparsable, equal

MEMORY = 4 * 2**30
"""Address space of a verifier process, in bytes."""


class OutOfTime(BaseException):
    """Not an ``Exception``: computer algebra catches those wherever it tries something."""


def _alarm(number: int, frame: object) -> None:
    raise OutOfTime


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the body after ``seconds`` of CPU time; kill the process two seconds later.

    The kill is for code that never comes back to the interpreter, such as the power of two huge integers.
    """
    import resource

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
    except Exception:  # whatever computer algebra stumbles over, the answer was not understood
        return "unparsable"


class VerifierWorker(gymnasium.Env[str, str]):
    """A verifier process as an environment: a reset to a request (JSON) is answered by the reason of its verdict."""

    def __init__(self) -> None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
        nowhere = os.open(os.devnull, os.O_WRONLY)  # what the libraries print is of no use to anybody
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    @classmethod
    def preload(cls) -> None:
        """Import and warm up what takes seconds, before any deadline runs."""
        equal("x + 1", "1 + x")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        request = json.loads((options or {})["task"])
        return compare(request["gold"], request["prediction"], request["seconds"]), {}


gymnasium.register(id="gagpo-internal/Verifier-v0", entry_point=f"{__name__}:VerifierWorker")
