"""Start this Python again, so that no file in the working directory can replace a module.

Python puts that directory before its own library for ``-m`` and ``-c``. Every process of this package is started
through this module.
"""

from __future__ import annotations

import json
import os
import sys

_RUN = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, "
_RUN += "'__main__', True)"


def command(*words: str) -> list[str]:
    """The command line of another interpreter."""
    return [sys.executable, "-P", *words]


def module_command(name: str, *words: str) -> list[str]:
    """The command line of ``python -m name``, with the module path of this interpreter."""
    return command("-c", _RUN, json.dumps(module_path()), name, *words)


def module_path() -> list[str]:
    """This interpreter's ``sys.path`` as absolute paths, with the working directory (an empty entry) moved last."""
    named = [os.path.abspath(directory) for directory in sys.path if directory]
    return named if len(named) == len(sys.path) else [*named, os.getcwd()]
