"""The metrics of an update, over all ranks.

Sums travel and means are taken once, at the end of an update: a mean of the ranks' means would weight a rank with few
tokens like one with many, and reading a number after every micro-batch would wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gagpo.distributed.ranks import Ranks
from gagpo.objectives import summary
from gagpo.objectives.policy import Metrics

MISMATCH = ("mismatch_kl", "mismatch_weight", "mismatch_max", "masked_tokens")
"""Metrics of the gap between sampler and trainer before the first step."""


@dataclass
class StepLog:
    """Metrics of the steps taken so far.

    losses: this rank's part of each step's loss.
    norms: of each step's gradient.
    sums, mismatch: sums of each micro-batch.
    tokens: of all rows.
    read: tokens in this rank's forward passes.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sums: list[Metrics] = field(default_factory=list)
    mismatch: list[Metrics] = field(default_factory=list)
    tokens: int = 0
    read: int = 0
    started: float = field(default_factory=time.perf_counter)

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Means over the steps and micro-batches of all ranks; empty if no step was taken."""
        if not self.losses:
            return {}
        losses = ranks.total(np.asarray(self.losses))  # the ranks' losses are parts of a sum
        read = ranks.total(float(self.read))
        metrics = summary(_of_all(self.sums, ranks))
        clip_fraction = metrics.pop("clip", 0.0)  # soft gates do not clip
        mismatch = summary(_of_all(self.mismatch, ranks))
        return {
            **metrics,
            "clip_fraction": clip_fraction,
            **{name: mismatch.get(name, 0.0) for name in MISMATCH},
            "loss": float(np.mean(losses)),
            "grad_norm": float(np.mean(self.norms)),
            "train_tokens_per_second": self.tokens / (time.perf_counter() - self.started),
            "train_tokens_read": read / self.tokens,
        }


def _of_all(sums: Sequence[Metrics], ranks: Ranks) -> Sequence[Metrics]:
    """The sums of all ranks' micro-batches."""
    if ranks.alone:
        return sums
    # As plain numbers: ranks may have different metrics, and a collective call needs tensors of one size.
    numbers = [{name: float(value) for name, value in metrics.items()} for metrics in sums]
    gathered = [metrics for rank_metrics in ranks.gathered(numbers) for metrics in rank_metrics]
    return [{name: torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()} for metrics in gathered]
