"""Start this Python again, so that no file of the working directory can replace a module.

Python puts that directory before its own library for ``-m``, for ``-c`` and for processes of ``multiprocessing``. Every
process of this project is started through this module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

_RUN = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, "
_RUN += "'__main__', True)"


def command(*words: str) -> list[str]:
    """The command line of another interpreter; what it starts through ``multiprocessing`` is as safe."""
    return [sys.executable, "-P", *words]


def module_command(name: str, *words: str) -> list[str]:
    """As ``python -m name``, in an interpreter that finds modules where this one does."""
    return command("-c", _RUN, json.dumps(module_path()), name, *words)


def module_path() -> list[str]:
    """The folders in which another process finds the modules of this one, in order, as absolute paths.

    An empty entry means the working directory, which Python puts first for ``-c`` and standard input. It goes last.
    """
    named = [os.path.abspath(place) for place in sys.path if place]
    return named if len(named) == len(sys.path) else [*named, os.getcwd()]


@contextmanager
def spawning() -> Iterator[SpawnContext]:
    """``multiprocessing`` with the start method ``spawn``; within the context its processes start safely."""
    import multiprocessing

    name = "PYTHONSAFEPATH"  # there is no place for -P in its command line
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield multiprocessing.get_context("spawn")
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
