"""The verifier process: one comparison per line of standard input, one verdict per line of standard output.

It bounds its own CPU time and memory, so that what it reports does not depend on how busy the machine is; the process
that started it holds a wall-clock deadline over it and kills it when that passes. It ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from gagpo.envs.math.verify.compare import Policy, same
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


def compare(gold: str, prediction: str, policy: Policy, seconds: float) -> str:
    """The reason of the verdict: match, mismatch, unparsable or timeout."""
    try:
        with cpu_limit(seconds):
            return "match" if same(read(gold), read(prediction), policy, equal) else "mismatch"
    except (Unparsable, Unreadable):
        return "unparsable"
    except (OutOfTime, MemoryError, RecursionError):
        return "timeout"
    except Exception:  # whatever computer algebra stumbles over, the answer was not understood
        return "unparsable"


def main() -> None:
    import resource

    # Ctrl-C reaches every process of the terminal; the owner decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
    # Replies go to a copy of standard output, so that nothing a library prints can get between them.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    equal("x + 1", "1 + x")  # imports and warms up before the first deadline runs
    # What the libraries print from here on is of no use to anybody.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    replies.write('{"ready": true}\n')
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        reason = compare(request["gold"], request["prediction"], Policy(**request["policy"]), request["seconds"])
        replies.write(json.dumps({"reason": reason}) + "\n")
    os._exit(0)  # nothing to clean up, and taking SymPy apart would take most of a second


if __name__ == "__main__":
    main()
