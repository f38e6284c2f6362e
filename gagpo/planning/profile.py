"""Measure where the time of an iteration goes, in a short run of a config."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base.tables import Table
from gagpo.model.spans import Profile
from gagpo.runs.metrics import Metrics
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import RunSettings
from gagpo.training.events import Event, IterationFinished
from gagpo.training.trainer import Trainer

PARTS = {
    "environments": "waiting for the environments",
    "prompts and actions": "texts to tokens and back; all of sampling with an engine in other processes",
    "reading": "the engine reads prompts",
    "decoding": "the engine samples tokens",
    "collecting": "the rest of collecting",
    "scoring": "log-probabilities before the first step",
    "forward": "the update's forward passes",
    "backward": "gradients",
    "optimiser": "clipping and steps",
    "credit and batches": "advantages, micro-batches, losses, weights to the engine",
    "writing": "metrics and episodes",
}
BAR = 24


@dataclass(frozen=True)
class IterationProfile:
    """The time of an iteration by part, in the order of :data:`PARTS`.

    wall: seconds of wall time.
    cpu: seconds of CPU time.
    metrics: of every measured iteration.
    """

    wall: dict[str, float]
    cpu: dict[str, float]
    metrics: list[Metrics]

    def table(self, title: str) -> Table:
        """A row with a bar for each part."""
        total = sum(self.wall.values())
        longest = max(self.wall.values())
        rows = [
            [span, f"{wall:.2f}", f"{wall / total:.0%}", f"{self.cpu[span]:.2f}", "#" * round(BAR * wall / longest)]
            for span, wall in self.wall.items()
            if wall > 0
        ]
        rows.append(["an iteration", f"{total:.2f}", "100%", f"{sum(self.cpu.values()):.2f}", ""])
        return Table(["part", "seconds", "fraction", "CPU", ""], rows, title, words=(0, 4), total=True)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"seconds": self.wall, "processor_seconds": self.cpu, "metrics": self.metrics}


def profile(settings: RunSettings, iterations: int) -> IterationProfile:
    """Train one warm-up iteration and ``iterations`` measured ones in a temporary folder.

    Evaluations and checkpoints are left out. On a GPU every part waits for its kernels, which is slightly slower.
    """
    training = settings.training.model_copy(
        update={"iterations": iterations + 1, "max_turns": None, "save_every": iterations + 2, "save_episodes_every": 0}
    )
    evaluation = settings.evaluation.model_copy(update={"before": False, "every": 0, "splits": []})
    settings = settings.model_copy(update={"training": training, "evaluation": evaluation})
    spans = Profile(_synchronize(settings.device))
    metrics: list[Metrics] = []

    def report(event: Event) -> None:
        if isinstance(event, IterationFinished):
            if event.metrics["iteration"] == 1:  # compiles kernels, starts workers, fills caches
                spans.clear()
            else:
                metrics.append(event.metrics)

    with tempfile.TemporaryDirectory(prefix="gagpo-profile-") as folder, spans.running():
        Trainer(RunFolder.create(Path(folder) / "run", settings), report, quiet=True).run()
    wall = {span: spans.wall.get(span, 0.0) / iterations for span in PARTS}
    cpu = {span: spans.processor.get(span, 0.0) / iterations for span in PARTS}
    return IterationProfile(wall, cpu, metrics)


def _synchronize(device: str) -> functools.partial[None] | None:
    """Waits for the kernels of a GPU, so that their time counts for the part that started them; None on a CPU."""
    import torch

    if torch.device(device).type != "cuda":
        return None
    return functools.partial(torch.cuda.synchronize, device)
