"""trackio: a local database in ``TRACKIO_DIR``; ``trackio show`` opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import trackio

from gagpo.base import durable
from gagpo.trackers.base import Record, Settings, sample_text


class Trackio:
    """One trackio run per run folder. Its name is in ``RUN/trackio-name``, so a resumed run continues it."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        place = run / "trackio-name"
        name = place.read_text(encoding="utf-8").strip() if place.exists() else run.resolve().name
        log = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = trackio.init("gagpo", name=name, resume="allow", config=dict(settings), **log)
        durable.write_text(place, name)

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.run.log(dict(row), step=step)

    def episodes(self, sample: Sequence[Record], step: int) -> None:
        self.run.log({"episodes": trackio.Markdown(sample_text(sample))}, step=step)

    def close(self) -> None:
        self.run.finish()
