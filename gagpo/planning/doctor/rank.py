"""The process that runs the doctor's checks, alone or as one of several ranks."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gagpo.base.child import Pipe
from gagpo.distributed.ranks import Ranks, joined
from gagpo.planning.doctor.machine import Machine, rank_device

MEETING_SECONDS, SILENT_SECONDS = 600.0, 60.0


def main(pipe: Pipe, request: str) -> None:
    """Send an answer once this process is ready, then one after each check, as JSON.

    The process ends after its last check, after the first that raises, or when the parent ends.

    request: JSON with the fields of the machine and the checks (``module:function``).
    """
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks a process that hangs where it is
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    asked = json.loads(request)
    with joined(SILENT_SECONDS, MEETING_SECONDS) as ranks:
        machine = _machine(asked["machine"], ranks)
        answer = _attempt(lambda: setattr(machine, "device", rank_device(machine.device, ranks)))
        _send(pipe, answer)
        for address in asked["checks"]:
            if "error" in answer:
                return
            module, _, name = address.partition(":")
            answer = _attempt(lambda m=module, n=name: asdict(getattr(importlib.import_module(m), n)(machine)))
            _send(pipe, answer)


def _end_with_parent(pipe: Pipe) -> None:
    with suppress(EOFError, OSError):
        pipe.receive()  # the parent sends nothing
    os._exit(1)


def _machine(record: dict[str, Any], ranks: Ranks) -> Machine:
    return Machine(**{**record, "folder": Path(record["folder"]), "runs": Path(record["runs"]), "ranks": ranks})


def _attempt(call: Callable[..., Any]) -> dict[str, Any]:
    """The result of ``call``, or its error on one line."""
    try:
        return {"finding": call()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _send(pipe: Pipe, answer: dict[str, Any]) -> None:
    pipe.send(json.dumps(answer, default=str))
