"""Lines for people that are shown once in a process, however often they are written."""

from __future__ import annotations

import logging
import sys
import threading

MOST_LINES = 10_000  # that are remembered; further ones count as new

_lines: set[str] = set()
_changing = threading.Lock()


def is_new(line: str) -> bool:
    """Whether ``line`` has not been shown yet; it counts as shown from now on. May be called from any thread."""
    with _changing:
        is_known = line in _lines
        if not is_known and len(_lines) < MOST_LINES:
            _lines.add(line)
    return not is_known


def forget() -> None:
    """Begin anew, for a new command in the same process."""
    with _changing:
        _lines.clear()


class OnceHandler(logging.Handler):
    """Prints each message on standard error once: a set of data may be loaded in several places."""

    def emit(self, record: logging.LogRecord) -> None:
        message = self.format(record)
        if is_new(message):
            print(message, file=sys.stderr, flush=True)


def show(logger: str) -> None:
    """Print the warnings of ``logger`` and of those below it once each; idempotent."""
    target = logging.getLogger(logger)
    if not any(isinstance(handler, OnceHandler) for handler in target.handlers):
        target.addHandler(OnceHandler(logging.WARNING))
