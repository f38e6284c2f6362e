"""How far the runs of a sweep are: read from their folders, so that a sweep needs no state."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gagpo.runs.metrics import Metrics, metric_row
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings, SettingsError, resolve
from gagpo.settings.derived import derived_values
from gagpo.settings.formats import with_formats_of
from gagpo.settings.keys import CHANGEABLE
from gagpo.sweeps.grid import SweepRun

State = Literal["waiting", "running", "finished", "failed", "stopped"]

TAIL = 65_536  # bytes at the end of metrics.jsonl: more than any row
SCHEDULED = ("name", "threads")
"""Keys that the sweep sets itself: a run keeps the threads it began with."""


@dataclass
class RunStatus:
    """One run of a sweep.

    changes: overrides to resume it with; None for a run that is not on disk yet.
    iteration: iterations done.
    row: metrics of the last iteration.
    seconds: that this sweep has spent on it.
    reason: why it failed.
    log: what its process printed.
    """

    run: SweepRun
    log: Path
    state: State = "waiting"
    changes: list[str] | None = None
    row: Metrics | None = None
    seconds: float = 0.0
    reason: str = ""

    @property
    def iteration(self) -> int:
        return int(self.row["iteration"]) if self.row else 0

    @property
    def iterations(self) -> int:
        return self.run.settings.training.iterations

    def refresh(self) -> None:
        """Read the run's last metrics."""
        self.row = last_row(self.run.folder / "metrics.jsonl") or self.row

    def record(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "name": self.run.name,
            "label": self.run.label,
            "overrides": list(self.run.overrides),
            "folder": str(self.run.folder),
            "state": self.state,
            "iteration": self.iteration,
            "reason": self.reason,
            "log": str(self.log),
        }


def status_of(run: SweepRun, logs: Path) -> RunStatus:
    """The run as an earlier start of the sweep left it.

    logs: folder for logs.

    Raises:
        SettingsError: its folder holds a run with other settings.
    """
    status = RunStatus(run, logs / f"{run.name}.log")
    if not (run.folder / "config.yaml").exists():
        return status
    folder = RunFolder.open(run.folder)
    # A run keeps the number formats that its machine chose when it began.
    settings = resolve(with_formats_of(run.settings, folder.settings), derived_values(run.settings))
    status.changes = _changes(folder, settings)
    status.refresh()
    if not status.changes and folder.finished:
        status.state = "finished"
    return status


def _changes(folder: RunFolder, settings: RunSettings) -> list[str]:
    """Overrides that turn the settings of a run on disk into ``settings``; SettingsError if none do."""
    before, after = _flat(folder.settings), _flat(settings)
    differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    differing = [key for key in differing if key not in SCHEDULED]
    shorter = settings.training.iterations < folder.settings.training.iterations
    fixed = [key for key in differing if key not in CHANGEABLE or (key == "training.iterations" and shorter)]
    if fixed:
        key = fixed[0]
        raise SettingsError(
            f"holds a run with other settings ({key}: {before.get(key)} there, {after.get(key)} here)",
            key=key,
            where=folder.path,
            advice="choose another folder with --runs, another name with name=..., or delete it",
        )
    return [f"{key}={json.dumps(after[key])}" for key in differing]


def _flat(settings: RunSettings) -> dict[str, object]:
    """The settings by dotted key, as plain data."""
    flat: dict[str, object] = {}
    pending: list[tuple[str, object]] = [("", settings.model_dump(mode="json"))]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [(f"{key}.{name}".strip("."), inner) for name, inner in value.items()]
        else:
            flat[key] = value
    return flat


def last_row(path: Path) -> Metrics | None:
    """The last whole row of ``metrics.jsonl``; None if there is none. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).decode("utf-8", errors="replace").split("\n")
    except OSError:
        return None
    rows = (metric_row(line) for line in reversed(lines) if line.strip())
    return next((row for row in rows if row is not None), None)
