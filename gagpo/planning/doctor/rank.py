"""A process that runs the doctor's checks: ``python -m gagpo.planning.doctor.rank FOLDER``.

With the environment variables of a rank it is one of several. Each result is written to a file. The process ends after
the last check, after the first that raises, or when its standard input closes.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gagpo.base import durable
from gagpo.distributed.ranks import joined
from gagpo.planning.doctor.machine import Machine, rank_device

READY = "ready"
MEETING_SECONDS, SILENT_SECONDS = 600.0, 60.0


def main() -> None:
    folder = Path(sys.argv[1])
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks where it hangs
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    asked = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    with joined(SILENT_SECONDS, MEETING_SECONDS) as ranks:
        record = asked["machine"]
        machine = Machine(**{**record, "folder": Path(record["folder"]), "runs": Path(record["runs"]), "ranks": ranks})
        answer = _try(lambda: setattr(machine, "device", rank_device(machine.device, ranks)))
        _write(folder, READY, ranks.rank, answer)
        for number, address in enumerate(asked["checks"]):
            if "error" in answer:
                return
            module, _, name = address.partition(":")
            answer = _try(lambda m=module, n=name: asdict(getattr(importlib.import_module(m), n)(machine)))
            _write(folder, str(number), ranks.rank, answer)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _try(call: Any) -> dict[str, Any]:
    """The result of ``call``, or its error in one line."""
    try:
        return {"finding": call()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def answer_path(folder: Path, number: str, rank: int) -> Path:
    return folder / f"answer-{number}-{rank}.json"


def _write(folder: Path, number: str, rank: int, answer: dict[str, Any]) -> None:
    """Write an answer atomically; values that JSON lacks become text."""
    durable.write_text(answer_path(folder, number, rank), json.dumps(answer, default=str))


if __name__ == "__main__":
    main()
