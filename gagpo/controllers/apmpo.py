"""APMPO's adaptive exponent and clip bound (arXiv 2605.04066)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gagpo.base.options import Options
from gagpo.credit.turns import Turns
from gagpo.credit.turns.grouping import group_mean, group_std


class Apmpo(Options):
    """Power-mean exponent and upper clip radius from the batch's successes, 0 or 1 (arXiv 2605.04066).

    exponent: ``exponential`` exp(-.8 mean), or ``linear`` 1 - .8 mean.
    radius: ``tanh`` of mean/std, of the ``mean`` alone, or of 1/``deviation`` alone.
    symmetric: the lower radius follows the upper.
    statistics: of the ``batch`` (the paper's text) or of each ``group`` (its pseudo-code).
    ddof: 0 for the population deviation (Algorithm 1, line 8), 1 for the sample's.
    """

    exponent: Literal["exponential", "linear"] = "exponential"
    radius: Literal["tanh", "mean", "deviation"] = "tanh"
    symmetric: bool = False
    statistics: Literal["batch", "group"] = "batch"
    ddof: Literal[0, 1] = 0


class ApmpoController:
    """Exponent and radius for the updates on one batch.

    exponent_G, radius_G: one entry, or one per task group; None before the first batch.
    """

    def __init__(self, settings: Apmpo):
        self.settings = settings
        self.exponent_G: list[float] | None = None
        self.radius_G: list[float] | None = None

    def observe_batch(self, turns: Turns) -> None:
        """Observe the successes of the batch."""
        settings, reward_E = self.settings, turns.coded_return_E("success")
        group_E, groups = turns.group_index_E, turns.groups
        if settings.statistics == "batch":
            group_E, groups = np.zeros(turns.episodes, np.int64), 1
        mean_G = group_mean(reward_E, group_E, groups)
        std_G = group_std(reward_E, group_E, groups, settings.ddof)
        self.exponent_G = apmpo_exponent(mean_G, settings).tolist()
        self.radius_G = apmpo_radius(mean_G, std_G, settings).tolist()

    def values(self) -> dict[str, float]:
        """Metrics, means over task groups."""
        found = {"apmpo_exponent": self.exponent_G, "apmpo_radius": self.radius_G}
        return {name: float(np.mean(value_G)) for name, value_G in found.items() if value_G}

    def state_dict(self) -> dict[str, Any]:
        return {"exponent_G": self.exponent_G, "radius_G": self.radius_G}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exponent_G, self.radius_G = state["exponent_G"], state["radius_G"]


def apmpo_exponent(mean: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Exponent p of the power mean from mean rewards in [0, 1]; 1 where all failed."""
    return 1.0 - 0.8 * mean if settings.exponent == "linear" else np.exp(-0.8 * mean)


def apmpo_radius(mean: np.ndarray, std: np.ndarray, settings: Apmpo) -> np.ndarray:
    """Upper clip radius ``.2 + (.4 - .2) tanh(FSS)``, ``FSS = mean/(std + 1e-6)`` or an ablation."""
    signal = mean if settings.radius == "mean" else (1.0 if settings.radius == "deviation" else mean) / (std + 1e-6)
    return np.asarray(0.2 + (0.4 - 0.2) * np.tanh(signal))
