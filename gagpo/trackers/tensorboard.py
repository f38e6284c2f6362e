"""TensorBoard event files in ``RUN/tensorboard``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from gagpo.trackers.base import Settings


class TensorBoard:
    """A resumed run purges the steps that it will log again."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=resume_iteration + 1)
        if not resume_iteration:
            text = json.dumps(settings, indent=1)
            self.writer.add_text("settings", "    " + text.replace("\n", "\n    "))

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
