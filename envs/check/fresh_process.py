"""Run a function in a fresh interpreter: to measure a cold start, or to compare with what another process returns."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from typing import Any

from gagpo.base.child import Child, ChildEnded, ChildFailed, ChildLate, Pipe
from gagpo.base.errors import GagpoError
from gagpo.envs.pool.wire import describe


class FreshProcessFailed(GagpoError, RuntimeError):
    """The function raised an error, its process died, or it took too long."""


def call(function: str, *arguments: Any, timeout: float, hash_seed: int | None = None) -> Any:
    """Call ``function`` ("module:name") with JSON ``arguments`` in a fresh interpreter, and return its JSON result.

    timeout: seconds after which the process is killed with all it started.
    hash_seed: fixes the order of its sets of strings.

    Raises:
        FreshProcessFailed: with the error, or with the exit status.
    """
    child = Child(
        "gagpo.envs.check.fresh_process:serve",
        variables=None if hash_seed is None else {**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        output=subprocess.DEVNULL,
        start_timeout=timeout,
    )
    try:
        answer = json.loads(child.ask(json.dumps([function, arguments]), timeout))
    except ChildLate:
        raise FreshProcessFailed(f"took more than {timeout:g} s in a fresh process", where=function) from None
    except ChildEnded as error:
        raise FreshProcessFailed(f"failed in a fresh process: exit status {error.status}", where=function) from None
    except ChildFailed as error:
        raise FreshProcessFailed(f"failed: {error}", where=function) from None
    finally:
        child.close()
    if "error" in answer:
        raise FreshProcessFailed(f"failed in a fresh process: {answer['error']}", where=function)
    return answer["result"]


def serve(pipe: Pipe) -> None:
    """Answer one request of :func:`call`."""
    pipe.send("ready")
    function, arguments = json.loads(pipe.receive())
    module, _, name = function.partition(":")
    try:
        answer = json.dumps({"result": getattr(importlib.import_module(module), name)(*arguments)})
    except Exception as error:
        answer = json.dumps({"error": describe(error)})
    pipe.send(answer)
