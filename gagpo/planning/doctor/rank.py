"""A process that takes the doctor's steps as it is told: ``python -m gagpo.planning.doctor.rank FOLDER``.

Started with the variables of a rank it is one of several. It reads one line of JSON for each step, and writes what it
found to a file. The end of its input ends it, also in the middle of a step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gagpo.base import durable
from gagpo.distributed.ranks import Ranks, joined
from gagpo.planning.doctor.machine import DoctorFinding, Machine, rank_device
from gagpo.planning.doctor.steps import Step

READY = "ready"
MEETING_SECONDS, SILENT_SECONDS = 600.0, 60.0


def main() -> None:
    folder = Path(sys.argv[1])
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # whoever waits for us asks where we are
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    torch.set_num_threads(1)
    with joined(MEETING_SECONDS, SILENT_SECONDS) as ranks:
        machine = _machine(folder, ranks)
        while (order := orders.get()) is not None:
            answer = taken(Step(**order["step"]), machine)
            write_answer(folder, order["number"], ranks.rank, answer)


def _listen(orders: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
        if line.strip() == "null":
            return
    os._exit(1)  # whoever told us what to do is gone


def _machine(folder: Path, ranks: Ranks) -> Machine:
    """The machine as this rank sees it; what keeps it from its device is its first answer."""
    about = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    record = about["machine"]
    for name in about["modules"]:  # a cold disk takes a minute for it, which is none of a step's
        with contextlib.suppress(Exception):  # the step says it
            importlib.import_module(name)
    answer: dict[str, Any] = {"finding": asdict(DoctorFinding(READY, "ok", ""))}
    try:
        record["device"] = rank_device(record["device"], ranks)
    except Exception as error:
        answer = {"error": described(error)}
    write_answer(folder, 0, ranks.rank, answer)
    return Machine(**{**record, "folder": Path(record["folder"]), "runs": Path(record["runs"]), "ranks": ranks})


def taken(step: Step, machine: Machine) -> dict[str, Any]:
    """What a step found, or what it raised: either is an answer about this machine."""
    try:
        return {"finding": asdict(step.load()(machine))}
    except Exception as error:
        return {"error": described(error)}


def described(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def answer_path(folder: Path, number: int, rank: int) -> Path:
    return folder / f"answer-{number}-{rank}.json"


def write_answer(folder: Path, number: int, rank: int, answer: dict[str, Any]) -> None:
    """Whole or not at all; numbers that JSON lacks become words."""
    durable.write_text(answer_path(folder, number, rank), json.dumps(answer, default=str))


if __name__ == "__main__":
    main()
