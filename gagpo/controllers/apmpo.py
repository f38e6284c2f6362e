"""APMPO's adaptive exponent and clip bound (arXiv 2605.04066)."""

from __future__ import annotations

import math
from typing import Any

from gagpo.base.options import Options
from gagpo.credit.turns import Turns


class Apmpo(Options):
    """Power-mean exponent and upper clip radius from the batch's successes, 0 or 1 (arXiv 2605.04066)."""


class ApmpoController:
    """Exponent and radius for the updates on one batch; None before the first batch."""

    def __init__(self) -> None:
        self.exponent: float | None = None
        self.radius: float | None = None

    def observe_batch(self, turns: Turns) -> None:
        """Observe the successes of the batch; the deviation is the population's (Algorithm 1, line 8)."""
        reward_E = turns.coded_return_E("success")
        mean, std = float(reward_E.mean()), float(reward_E.std())
        self.exponent = math.exp(-0.8 * mean)
        self.radius = 0.2 + (0.4 - 0.2) * math.tanh(mean / (std + 1e-6))

    def values(self) -> dict[str, float]:
        """Metrics."""
        found = {"apmpo_exponent": self.exponent, "apmpo_radius": self.radius}
        return {name: value for name, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        return {"exponent": self.exponent, "radius": self.radius}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exponent, self.radius = state["exponent"], state["radius"]
