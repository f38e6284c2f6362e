"""A bound on how far one iteration moves the policy: what goes too far is taken back in part, and the rate follows.

Adam makes a step of the same length of noise as of signal, and a model that was barely trained moves further by it than
one that was trained long. So the same rate teaches one model and destroys another. The divergence says which it is.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options

State = dict[str, Any]


class TrustRegion(Options):
    """Keep KL(policy that sampled || policy after the updates) of an iteration near ``target`` where it is larger.

    The divergence grows with the square of the step. A step whose divergence is beyond ``slack`` times the target is
    therefore shortened by the root of their ratio, along its own direction, and measured again. The learning rate of
    the next iterations is shortened alike, by half at most, and grows again by ``growth`` an iteration while the
    divergence stays below the target; it never exceeds what the settings ask for.
    """

    target: float = Field(0.05, gt=0, description="nats a token that an iteration may move the policy")
    slack: float = Field(1.5, ge=1, description="times the target from which on a step is taken back in part")
    growth: float = Field(1.2, ge=1, description="by which a shortened rate grows again in an iteration")


class TrustRegionController:
    """scale: what the learning rate is multiplied by, at most 1. kept: the part of the last step that was kept."""

    LEAST = 0.01  # of the rate, and of a step
    ROUNDS = 3  # measurements of one iteration

    def __init__(self, settings: TrustRegion):
        self.settings = settings
        self.scale = self.kept = 1.0
        self.kl: float | None = None  # of the last step as it was made, where it was measured

    def suspects(self, kl: float | None) -> bool:
        """Whether a step has to be measured.

        kl: of the tokens when they were last trained on, which misses what the last optimiser step did to them and
        costs nothing; None where there was only one, so that it says nothing.
        """
        self.kl, self.kept = None, 1.0
        return kl is None or not kl < self.settings.target / 4

    def part(self, kl: float) -> float | None:
        """The part to keep of the step as it is now, whose divergence was measured; None where it may stay.

        A divergence that is not finite keeps next to nothing.
        """
        target = self.settings.target
        if self.kl is None:
            self.kl = kl
        if kl <= self.settings.slack * target:
            return None
        part = max(self.LEAST, math.sqrt(target / kl)) if math.isfinite(kl) else self.LEAST
        self.kept *= part
        return part

    def observe(self) -> None:
        """The iteration is over: its rate is shortened by as much as its step, or grows again."""
        if self.kl is None or self.kl < self.settings.target:
            change = self.settings.growth
        else:
            change = max(0.5, math.sqrt(self.settings.target / self.kl)) if math.isfinite(self.kl) else 0.5
        self.scale = min(1.0, max(self.LEAST, self.scale * change))

    def values(self) -> dict[str, float]:
        """What to log."""
        found = {"rate_scale": self.scale, "step_kept": self.kept}
        return found if self.kl is None else {**found, "step_kl": self.kl}

    def state_dict(self) -> State:
        return {"scale": self.scale}

    def load_state_dict(self, state: State) -> None:
        scale = float(state["scale"])
        if not self.LEAST <= scale <= 1:
            raise InvalidArgument(f"the scale of a learning rate is {self.LEAST} to 1, got {scale}")
        self.scale = scale
