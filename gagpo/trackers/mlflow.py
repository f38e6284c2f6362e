"""MLflow: ``MLFLOW_TRACKING_URI``, or a database in the run's folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from gagpo.base import durable
from gagpo.trackers.base import Record, Settings, sample_text

EXPERIMENT = "gagpo"


class Mlflow:
    """One MLflow run per run folder: its id is kept in ``RUN/mlflow-id``, so that a resumed run goes on in it."""

    def start(self, run: Path, settings: Settings, resume_iteration: int) -> None:
        local = f"sqlite:///{(run / 'mlflow.db').resolve()}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        place = run / "mlflow-id"
        if place.exists():
            self.id = place.read_text(encoding="utf-8").strip()
            self.client.update_run(self.id, status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        number = (
            experiment.experiment_id
            if experiment
            else self.client.create_experiment(
                EXPERIMENT,
                None if "MLFLOW_TRACKING_URI" in os.environ else (run / "mlflow-artifacts").resolve().as_uri(),
            )
        )
        self.id = self.client.create_run(number, run_name=run.resolve().name).info.run_id
        durable.write_text(place, self.id)
        self.client.log_dict(self.id, dict(settings), "settings.json")

    def log(self, row: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.id, [Metric(name, value, now, step) for name, value in row.items()])

    def episodes(self, sample: Sequence[Record], step: int) -> None:
        self.client.log_text(self.id, sample_text(sample), f"episodes-{step:06d}.txt")

    def close(self) -> None:
        self.client.set_terminated(self.id)
