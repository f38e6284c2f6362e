"""Run a function in a fresh interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

from gagpo.base.errors import GagpoError
from gagpo.base.interpreter import command, module_path

# Standard output carries only the result; what the function prints goes to standard error.
_BOOT = """
import importlib, json, os, sys
result = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
path, function, arguments = json.load(sys.stdin)
sys.path[:] = path
module, _, name = function.partition(":")
json.dump(getattr(importlib.import_module(module), name)(*arguments), result)
result.close()
"""


class FreshProcessFailed(GagpoError, RuntimeError):
    """The function raised, its process died, or it took too long; the message contains its last line of output."""


def call(function: str, *arguments: Any, timeout: float, hash_seed: int | None = None) -> Any:
    """Call ``function`` ("module:name") with JSON ``arguments`` in a fresh interpreter, and return its JSON result.

    The interpreter has the same module path. After ``timeout`` seconds, the process and its children are killed.

    hash_seed: fixes the order of sets of strings.

    Raises:
        FreshProcessFailed: no result.
    """
    order = None if hash_seed is None else {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    process = subprocess.Popen(
        command("-c", _BOOT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=order,
        start_new_session=True,
    )
    try:
        request = json.dumps([module_path(), function, arguments])
        output, errors = process.communicate(request, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise FreshProcessFailed(f"{function} took more than {timeout:g} s in a fresh process") from None
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise FreshProcessFailed(f"{function} failed in a fresh process: {last[:500]}")
    return json.loads(output)
