"""Starting this Python again, so that no file of the working directory takes the place of a module.

Python itself puts that directory first, before its own library, for ``-m`` and ``-c`` and for what ``multiprocessing``
starts. Every process of this project is started by what stands here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext

_RUN = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, "
_RUN += "'__main__', True)"


def command(*words: str) -> list[str]:
    """The command line of another interpreter; what it starts through ``multiprocessing`` is as safe as itself."""
    return [sys.executable, "-P", *words]


def module_command(name: str, *words: str) -> list[str]:
    """As ``python -m name``, in an interpreter that finds modules where this one does."""
    return command("-c", _RUN, json.dumps(module_path()), name, *words)


def module_path() -> list[str]:
    """The folders in which another process finds the modules of this one, in order, as absolute paths.

    An empty entry stands for the working directory: Python puts it first for ``-c`` and standard input. It goes last.
    """
    named = [os.path.abspath(place) for place in sys.path if place]
    return named if len(named) == len(sys.path) else [*named, os.getcwd()]


@contextmanager
def spawning() -> Iterator[SpawnContext]:
    """``multiprocessing`` as it starts afresh; within, so does whatever else this process starts."""
    name = "PYTHONSAFEPATH"  # there is no place for -P in its command line
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield multiprocessing.get_context("spawn")
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
