"""A process that takes the doctor's steps; started with the variables of a rank, it is one of several.

It answers each step with what it found. The end of the connection ends it, also in the middle of a step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import queue
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gagpo.base.child import Pipe
from gagpo.distributed.ranks import Ranks, joined
from gagpo.planning.doctor.machine import DoctorFinding, Machine, rank_device
from gagpo.planning.doctor.steps import Step

READY = "ready"
MEETING_SECONDS, SILENT_SECONDS = 600.0, 60.0


def main(pipe: Pipe) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the doctor asks where this process hangs
    messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(pipe, messages), daemon=True).start()
    torch.set_num_threads(1)
    with joined(MEETING_SECONDS, SILENT_SECONDS) as ranks:
        about = messages.get()
        assert about is not None
        machine = _machine(pipe, about, ranks)
        while (step := messages.get()) is not None:
            answer(pipe, taken(Step(**step), machine))


def _listen(pipe: Pipe, messages: queue.Queue[dict[str, Any] | None]) -> None:
    try:
        while (message := pipe.receive()) is not None:
            messages.put(message)
    except (EOFError, OSError):
        os._exit(1)  # the doctor is gone
    messages.put(None)


def _machine(pipe: Pipe, about: dict[str, Any], ranks: Ranks) -> Machine:
    """The machine as this rank sees it; what keeps it from its device is its first answer."""
    record = about["machine"]
    for name in about["modules"]:  # takes a minute from a cold disk, which does not count for a step
        with contextlib.suppress(Exception):  # the step reports it
            importlib.import_module(name)
    first: dict[str, Any] = {"finding": asdict(DoctorFinding(READY, "ok", ""))}
    try:
        record["device"] = rank_device(record["device"], ranks)
    except Exception as error:
        first = {"error": described(error)}
    answer(pipe, first)
    return Machine(**{**record, "folder": Path(record["folder"]), "runs": Path(record["runs"]), "ranks": ranks})


def answer(pipe: Pipe, found: dict[str, Any]) -> None:
    """Send what was found, as JSON: numbers that JSON lacks become words."""
    pipe.send(json.dumps(found, default=str))


def taken(step: Step, machine: Machine) -> dict[str, Any]:
    """What a step found, or what it raised: either is an answer about this machine."""
    try:
        return {"finding": asdict(step.load()(machine))}
    except Exception as error:
        return {"error": described(error)}


def described(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
