"""Weights & Biases. ``WANDB_MODE=offline`` writes to ``RUN/wandb`` for a later ``wandb sync``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import wandb

from gagpo.base import durable
from gagpo.trackers.base import Settings


class Wandb:
    """One wandb run per run folder. Its id is in ``RUN/wandb-id``, so a resumed run continues it."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        id_file = run / "wandb-id"
        run_id = id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None
        self.run = wandb.init(
            project="gagpo", name=run.resolve().name, id=run_id, resume="allow", dir=str(run), config=dict(settings)
        )
        if run_id is None:
            durable.write_text(id_file, str(self.run.id))
        # wandb's steps only increase, so repeated iterations need a metric of their own.
        self.run.define_metric("iteration")
        self.run.define_metric("*", step_metric="iteration")

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.run.log({**row, "iteration": step})

    def close(self) -> None:
        self.run.finish()
